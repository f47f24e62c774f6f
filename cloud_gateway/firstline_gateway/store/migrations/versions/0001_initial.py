"""The schema as of the first release: every table that the packages declare."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _create_contracts()
    _create_deliveries()
    _create_fleet()
    _create_identity()
    _create_jobs()
    _create_profiles()
    _create_registry()
    _create_rollouts()
    _create_store()
    _create_audit_log()
    _create_webhooks()
    op.execute("INSERT INTO service_clock (id, seconds) VALUES (1, 0)")
    op.execute("INSERT INTO identity_version (id, version) VALUES (1, 0)")


def _create_contracts() -> None:
    op.create_table(
        "contract_pools",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_contract_pools"),
    )
    op.create_table(
        "contract_contributions",
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("audits", sa.BigInteger, nullable=False),
        sa.Column("disagreements", sa.BigInteger, nullable=False),
        sa.Column("last_s", sa.Double, nullable=False),
        sa.Column("service_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("pool", "device", name="pk_contract_contributions"),
    )
    op.create_table(
        "contract_audits",
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("service_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("device", "request_id", name="pk_contract_audits"),
    )
    op.create_index("ix_contract_audits_device_service_s", "contract_audits", ["device", "service_s"])
    op.create_index("ix_contract_audits_service_s", "contract_audits", ["service_s"])
    op.create_table(
        "contract_evidence",
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("hour", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("audits", sa.BigInteger, nullable=False),
        sa.Column("e_value", sa.Double, nullable=False),
        sa.Column("risk", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("pool", "hour", name="pk_contract_evidence"),
    )
    op.create_table(
        "contract_quotas",
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("per_hour", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("bundle", "version", name="pk_contract_quotas"),
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("sequence", _SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("service_s", sa.Double, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=True),
        sa.Column("answer_header", sa.Integer, nullable=True),
        sa.PrimaryKeyConstraint("sequence", name="pk_deliveries"),
        sa.UniqueConstraint("device", "request_id", name="uq_deliveries_device_request_id"),
    )
    op.create_index("ix_deliveries_service_s", "deliveries", ["service_s"])


def _create_fleet() -> None:
    op.create_table(
        "fleet_answers",
        sa.Column("number", _SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("expired", sa.Boolean, nullable=False),
        sa.Column("changed", sa.Boolean, nullable=True),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_fleet_answers"),
        sa.UniqueConstraint("device", "request_id", name="uq_fleet_answers_device_request_id"),
    )
    op.create_index("ix_fleet_answers_at_s", "fleet_answers", ["at_s"])
    op.create_index("ix_fleet_answers_device_number", "fleet_answers", ["device", "number"])
    op.create_table(
        "fleet_devices",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("accepted_s", sa.Double, nullable=True),
        sa.Column("first_seen_s", sa.Double, nullable=True),
        sa.Column("last_seen_s", sa.Double, nullable=True),
        sa.Column("online", sa.Boolean, nullable=False),
        sa.Column("session", sa.String(64), nullable=False),
        sa.Column("earlier_sessions", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("reported", sa.Text, nullable=True),
        sa.Column("desired", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_fleet_devices"),
    )
    op.create_index("ix_fleet_devices_last_seen_s", "fleet_devices", ["last_seen_s"])
    op.create_table(
        "fleet_counts",
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("session", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("latest", sa.Text, nullable=False),
        sa.Column("totals", sa.Text, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("device", name="pk_fleet_counts"),
    )
    op.create_table(
        "fleet_history",
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("totals", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("device", "hour", name="pk_fleet_history"),
    )
    op.create_table(
        "fleet_tiers",
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("kept", sa.BigInteger, nullable=False),
        sa.Column("escalated", sa.BigInteger, nullable=False),
        sa.Column("errors", sa.BigInteger, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("latency_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("bucket", "model", "version", name="pk_fleet_tiers"),
    )
    op.create_table(
        "fleet_brake",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("brake", sa.Text, nullable=False),
        sa.Column("by", sa.String(160), nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_brake"),
    )


def _create_identity() -> None:
    op.create_table(
        "identity_version",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_identity_version"),
    )
    op.create_table(
        "devices",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("enrolled_s", sa.Double, nullable=False),
        sa.Column("revoked_s", sa.Double, nullable=True),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_devices"),
    )
    op.create_index("ix_devices_changed", "devices", ["changed"])
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(40), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("issued_s", sa.Double, nullable=False),
        sa.Column("not_after_s", sa.Double, nullable=False),
        sa.Column("revoked_s", sa.Double, nullable=True),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("retained_until_service_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_certificates"),
    )
    op.create_index("ix_certificates_changed", "certificates", ["changed"])
    op.create_index("ix_certificates_device", "certificates", ["device", "not_after_s"])
    op.create_index("ix_certificates_not_after_s", "certificates", ["not_after_s"])
    op.create_table(
        "join_tokens",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("created_by", sa.String(160), nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.Column("used_s", sa.Double, nullable=True),
        sa.Column("key_hash", sa.String(64), nullable=True),
        sa.Column("certificate", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("sha256", name="pk_join_tokens"),
    )
    op.create_index("ix_join_tokens_device", "join_tokens", ["device"])
    op.create_index("ix_join_tokens_expires_s", "join_tokens", ["expires_s"])
    op.create_table(
        "api_keys",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=True),
        sa.Column("requests_per_s", sa.Double, nullable=True),
        sa.Column("person", sa.String(64), nullable=False),
        sa.Column("revoked_s", sa.Double, nullable=True),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_changed", "api_keys", ["changed"])
    op.create_index("ix_api_keys_name", "api_keys", ["name"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("sequence", _SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("header", sa.Integer, nullable=True),
        sa.Column("due_service_s", sa.Double, nullable=True),
        sa.Column("service_s", sa.Double, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("lease_service_s", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_jobs"),
        sa.UniqueConstraint("job_id", name="uq_jobs_job_id"),
    )
    op.create_index("ix_jobs_service_s", "jobs", ["service_s"])
    op.create_index("ix_jobs_status_priority_sequence", "jobs", ["status", "priority", "sequence"])
    op.create_table(
        "jobs_usage",
        sa.Column("sequence", _SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_jobs_usage"),
    )


def _create_profiles() -> None:
    op.create_table(
        "profiles",
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("machine", sa.String(64), nullable=False),
        sa.Column("kept_s", sa.Double, nullable=False),
        sa.Column("by", sa.String(160), nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("bundle", "version", "machine", name="pk_profiles"),
    )
    op.create_index("ix_profiles_bundle_fingerprint", "profiles", ["bundle", "fingerprint"])
    op.create_table(
        "profile_requests",
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("wanted", sa.Text, nullable=False),
        sa.Column("by", sa.String(160), nullable=False),
        sa.Column("asked_s", sa.Double, nullable=False),
        sa.Column("until_s", sa.Double, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("delivered_s", sa.Double, nullable=True),
        sa.Column("ended_s", sa.Double, nullable=True),
        sa.Column("why", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("device", "bundle", name="pk_profile_requests"),
    )
    op.create_index("ix_profile_requests_until_s", "profile_requests", ["until_s"])


def _create_registry() -> None:
    op.create_table(
        "registry_metadata",
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("role", "version", name="pk_registry_metadata"),
    )
    op.create_table(
        "registry_aliases",
        sa.Column("sequence", _SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("alias", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=True),
        sa.Column("changed_by", sa.String(160), nullable=False),
        sa.Column("changed_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_registry_aliases"),
    )
    op.create_index("ix_registry_aliases_model_alias_sequence", "registry_aliases", ["model", "alias", "sequence"])


def _create_rollouts() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("idempotency", sa.String(64), nullable=True),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollouts"),
        sa.UniqueConstraint("idempotency", name="uq_rollouts_idempotency"),
    )
    op.create_index("ix_rollouts_active", "rollouts", ["active"])
    op.create_index("ix_rollouts_bundle", "rollouts", ["bundle"])
    op.create_table(
        "rollout_devices",
        sa.Column("rollout", sa.String(64), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("before", sa.Text, nullable=True),
        sa.Column("start", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("rollout", "device", name="pk_rollout_devices"),
    )
    op.create_table(
        "rollout_looks",
        sa.Column("rollout", sa.String(64), nullable=False),
        sa.Column("stage", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("look", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("rollout", "stage", "look", name="pk_rollout_looks"),
    )
    op.create_table(
        "rollout_lease",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("until_service_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_lease"),
    )


def _create_store() -> None:
    op.create_table(
        "service_clock",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_service_clock"),
    )


def _create_audit_log() -> None:
    op.create_table(
        "audit_log_entries",
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("actor", sa.String(160), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_audit_log_entries"),
    )
    op.create_index("ix_audit_log_entries_subject", "audit_log_entries", ["subject"])
    op.create_table(
        "audit_log_head",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log_head"),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhook_positions",
        sa.Column("webhook", sa.String(80), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("due_service_s", sa.Double, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("failing_service_s", sa.Double, nullable=True),
        sa.Column("problem", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("webhook", name="pk_webhook_positions"),
    )
