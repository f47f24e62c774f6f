"""The Mosquitto between devices and gateways: its files, and how revoked devices leave it."""
