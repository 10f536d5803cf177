"""Dispatch and combine between CPUs, beside torch's all_to_all_single with exact sizes."""
