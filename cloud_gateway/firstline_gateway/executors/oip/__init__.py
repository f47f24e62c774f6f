"""Full models on other servers, over the Open Inference Protocol V2: Triton, KServe, OVMS, or Firstline gateways."""
