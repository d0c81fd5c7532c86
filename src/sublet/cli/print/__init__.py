"""How answers look: tables, documents, pages and progress."""
