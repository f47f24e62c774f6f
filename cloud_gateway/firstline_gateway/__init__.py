"""The cloud gateway: runs the full models for devices and applications, over HTTP and MQTT."""

__version__ = "0.1.0"
