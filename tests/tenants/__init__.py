"""Two tenants of one service, who must never notice each other."""
