"""The accuracy contract in the field: kept answers are audited, and what the audits show is acted upon."""
