"""Makes smaller and faster variants of a bundle's models, and keeps those that measurement shows to be better.

    compression         makes, measures, certifies and judges the candidates; the manifest of the next version
    candidates          applies every technique to one model
    onnx_techniques     ONNX Runtime's quantiser: static and dynamic int8, fp16, int8 weights; sensitive operators
    tflite_techniques   `ai-edge-quantizer` for TFLite models: static and dynamic int8, int8 weights
    student             trains a smaller model on the answers of a larger one (`[train]`)
    evaluation          three parts of the data; accuracy, certificates and latency on them
    judge               whether a candidate is better than the existing models, with numbers and reasons; pure

Models are changed by the quantisers and by PyTorch only (docs/adr/0048).
"""
