"""Identities of callers: the gateway's certificate authority, enrolment, revocation, and API keys."""
