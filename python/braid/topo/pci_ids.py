"""A GPU's name by the numbers that it has on PCI, for sources that tell no more.

Names are as drivers write them, numbers as in the public registry of PCI identifiers (pci.ids).
"""

from braid.topo.pci_class import AMD, NVIDIA

_NVIDIA = {
    "Tesla P100-PCIE-16GB": "15f7 15f8",
    "Tesla P100-SXM2-16GB": "15f9 15fc",
    "Tesla P40": "1b38",
    "Tesla P4": "1bb3",
    "Tesla V100-SXM2-16GB": "1db1 1db2 1df5",
    "Tesla V100-PCIE-16GB": "1db4 1db3",
    "Tesla V100-SXM2-32GB": "1db5 1db7",
    "Tesla V100-PCIE-32GB": "1db6",
    "Tesla V100-SXM3-32GB": "1db8",
    "Tesla V100S-PCIE-32GB": "1df6",
    "NVIDIA TITAN RTX": "1e02",
    "NVIDIA GeForce RTX 2080 Ti": "1e03 1e04 1e07",
    "Quadro RTX 6000": "1e36",
    "Quadro RTX 8000": "1e30 1e78",
    "Tesla T4": "1eb8",
    "NVIDIA A100-SXM4-40GB": "20b0",
    "NVIDIA A100-SXM4-80GB": "20b2",
    "NVIDIA A100-SXM-64GB": "20b3",
    "NVIDIA A100-PCIE-40GB": "20b1 20f1",
    "NVIDIA A100 80GB PCIe": "20b5",
    "NVIDIA A30": "20b7",
    "NVIDIA A800-SXM4-40GB": "20bd",
    "NVIDIA A800-SXM4-80GB": "20f3",
    "NVIDIA A800 80GB PCIe": "20f5",
    "NVIDIA A800 40GB PCIe": "20f6",
    "NVIDIA GeForce RTX 3090 Ti": "2203",
    "NVIDIA GeForce RTX 3090": "2204",
    "NVIDIA GeForce RTX 3080": "2206 220a 2216",
    "NVIDIA RTX A6000": "2230",
    "NVIDIA RTX A5000": "2231",
    "NVIDIA A40": "2235",
    "NVIDIA A10": "2236",
    "NVIDIA A10G": "2237",
    "NVIDIA RTX A4000": "24b0",
    "NVIDIA H20": "2329",
    "NVIDIA H20-3e": "232c",
    "NVIDIA H100 NVL": "2321",
    "NVIDIA H800 PCIe": "2322",
    "NVIDIA H800": "2324",
    "NVIDIA H800 NVL": "233a",
    "NVIDIA H100 80GB HBM3": "2330",
    "NVIDIA H100 PCIe": "2331",
    "NVIDIA H100": "2336 2337 2338 2339 233d",
    "NVIDIA H200": "2335",
    "NVIDIA H200 NVL": "233b",
    "NVIDIA GH200 480GB": "2342",
    "NVIDIA GH200 144G HBM3e": "2348",
    "NVIDIA GeForce RTX 4090": "2684 2685",
    "NVIDIA RTX 6000 Ada Generation": "26b1",
    "NVIDIA RTX 5000 Ada Generation": "26b2",
    "NVIDIA L40": "26b5",
    "NVIDIA L20": "26b7 26ba",
    "NVIDIA L40S": "26b9",
    "NVIDIA GeForce RTX 4080": "2702 2703 2704",
    "NVIDIA L4": "27b8",
    "NVIDIA B200": "2901",
    "NVIDIA GB200": "2941",
    "NVIDIA B100": "2920 29bc",
    "NVIDIA GeForce RTX 5090": "2b85 2b87",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "2bb1 2bb4",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "2bb5",
    "NVIDIA GeForce RTX 5080": "2c02",
    "NVIDIA GB10": "2e12",
    "NVIDIA B300 SXM6 AC": "3182",
    "NVIDIA GB300": "31a1 31c2 31c3",
}
_AMD = {
    "AMD Instinct MI50": "66a1",
    "AMD Instinct MI100": "738c 738e",
    "AMD Instinct MI250X": "7408 740c",
    "AMD Instinct MI210": "740f",
    "AMD Instinct MI300A": "74a0",
    "AMD Instinct MI300X": "74a1 74a9 74b5 74bd",
    "AMD Instinct MI308X": "74a2",
    "AMD Instinct MI325X": "74a5 74b9",
    "AMD Instinct MI350X": "75a0",
    "AMD Instinct MI355X": "75a3",
}


def _by_number(names: dict[str, str]) -> dict[str, str]:
    return {f"0x{number}": name for name, numbers in names.items() for number in numbers.split()}


_NAMES = {NVIDIA: _by_number(_NVIDIA), AMD: _by_number(_AMD)}


def gpu_name(vendor: str, device: str) -> str:
    """ "NVIDIA H200" for 0x10de, 0x2335; "" for a device that is not in the table."""
    return _NAMES.get(vendor.lower(), {}).get(device.lower(), "")
