"""The Open Inference Protocol V2 over gRPC, for both tiers. Needs the packages `grpcio` and `protobuf`.

`inference.proto` says what travels, `schema.py` makes messages of it, `codec.py` reads and writes inferences,
`statuses.py` maps errors, `service.py` answers calls, `server.py` listens.
"""
