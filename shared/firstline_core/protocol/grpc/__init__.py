"""The Open Inference Protocol V2 over gRPC, for both tiers. Needs the packages `grpcio` and `protobuf`.

`inference.proto` declares the messages and `schema.py` loads its compiled form, `inference.binpb`. `codec.py` reads and
writes inferences, `service.py` answers calls and maps errors to statuses, `server.py` listens.
"""
