"""The claims about one large job on spot, beside Parcae."""
