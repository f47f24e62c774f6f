"""Who may call: the gateway's certificate authority, enrolment, revocation, and API keys."""
