"""`braid bench` on GPUs: braid against NCCL and torch's symmetric memory in one run.

What is measured (case, pattern), who is measured (contestant and the files named after
libraries), how (timer, race), what comes of it (gpu_record, verdict, flexlink, curves) are apart
from one another. Only the files named after libraries, timer and session import torch.
"""
