"""The gateway's API: requests for inference (`infer.py`, plain ASGI), the control plane (FastAPI), and gRPC."""
