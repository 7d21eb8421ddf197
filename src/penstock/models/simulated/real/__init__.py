"""A small real model (llama.cpp) behind the same protocols."""
