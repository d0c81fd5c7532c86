"""Budget-optimal rental: as published (`policy`) and as in theory (`ideal`)."""
