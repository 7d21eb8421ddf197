"""A small real model (llama.cpp) with the same protocols."""
