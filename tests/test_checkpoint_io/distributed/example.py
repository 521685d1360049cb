"""Run an example, as ``python SCRIPT ARGUMENT...`` does, on CPUs: example.py SCRIPT ARGUMENT..."""

import runpy
import sys

import torch
from cpu_accelerator import supply_cpu_accelerator

torch.set_num_threads(1)
supply_cpu_accelerator()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
