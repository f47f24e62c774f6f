"""A full model cut in two: where it can be, what becomes of it there, and what that costs.

onnx_graph, tflite_graph    the places where one tensor alone crosses, and the two models that a cut makes
checkpoint                  the tensor that crosses, in bytes
measure                     all of it on a machine and on data: `firstline_core.planning.split` has the document
"""
