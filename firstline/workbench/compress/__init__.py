"""Makes smaller and faster variants of a bundle's models, and keeps those that measurement says are better.

Judging
    compression     from a bundle and data to what was measured, certified and judged
    judge           whether a candidate is better than what is there, with the numbers and the reason; pure
    loss            what of its accuracy a candidate loses: seen, and at most; pure
    parts           three parts of the data: to make, to judge, to certify
    trial           candidates beside what is there: accuracy, latency, certificate
    target          what each costs on the machine that it is for: measured here, or read from that one's profile
    writing         the next version of the bundle, with the accepted variants in their order

Making
    making          every technique applied to one model, each loaded once
    techniques      files by ONNX Runtime's quantiser: static and dynamic int8, fp16, int8 weights
    tflite_techniques   the same of TFLite models, by `ai-edge-quantizer`: static and dynamic int8, int8 weights
    sensitivity     which operators are not to be quantised, by measuring each
    student         cutting, reconstruction and distillation in one row
    shortening      drops whole residual blocks
    pruning         cuts channels out of convolutions
    reconstruction  mends what was cut by least squares
    distilling      trains a smaller model on what the larger one says (`[train]`)
    checkpoint      a training that was ended goes on from its last epoch
    normalising     batch normalisation for the time of a training, folded away again
    inside          what lies inside of an ONNX model, for given rows
"""
