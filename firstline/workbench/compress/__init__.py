"""Makes smaller and faster variants of a bundle's models, and keeps those that measurement shows to be better.

Judging
    compression         makes, measures, certifies and judges the candidates
    judge               whether a candidate is better than the existing models, with numbers and reasons; pure
    partition           three parts of the data: to make, to judge, to certify
    evaluation          answers, accuracy, certificate and latency of candidates and existing models
    target              cost on the target machine, measured here or read from its profile
    next_version        writes the next version of the bundle

Making
    candidates          applies every technique to one model
    onnx_techniques     ONNX Runtime's quantiser: static and dynamic int8, fp16, int8 weights
    tflite_techniques   `ai-edge-quantizer` for TFLite models: static and dynamic int8, int8 weights
    sensitivity         operators that must not be quantised, by measuring each
    student             cuts, refits and trains a student
    block_pruning       drops residual blocks
    channel_pruning     cuts channels of convolutions
    refitting           refits cut layers by least squares
    distillation        trains a smaller model on the answers of a larger one (`[train]`)
    checkpoint          saves and resumes a training
    intermediate        intermediate tensors of an ONNX model
"""
