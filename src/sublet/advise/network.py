"""How fast the network of a node is. Price lists do not say, so this is what clouds document, and a guess for the rest.

>>> gbit_per_s("aws", "g5.xlarge", 1), gbit_per_s("nobody", "x8", 8)
(10.0, 100.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["UNKNOWN_GBIT_PER_S", "gbit_per_s"]

UNKNOWN_GBIT_PER_S = ((8, 100.0), (2, 25.0), (1, 10.0))  # by GPUs of the node, at least; slow rather than fast

# As documented, Gbit/s; "up to" where AWS says so: long transfers of the smallest types are slower.
_SIZES: Mapping[str, str] = {
    "aws": "g4dn: xlarge 25 2xlarge 25 4xlarge 25 8xlarge 50 12xlarge 50 16xlarge 50 metal 100; "
    "g5: xlarge 10 2xlarge 10 4xlarge 25 8xlarge 25 16xlarge 25 12xlarge 40 24xlarge 50 48xlarge 100; "
    "g5g: xlarge 10 2xlarge 10 4xlarge 10 8xlarge 12 16xlarge 25 metal 25; "
    "g6: xlarge 10 2xlarge 10 4xlarge 25 8xlarge 25 16xlarge 25 12xlarge 40 24xlarge 50 48xlarge 100; "
    "gr6: 4xlarge 25 8xlarge 25; "
    "g6e: xlarge 20 2xlarge 20 4xlarge 20 8xlarge 25 16xlarge 35 12xlarge 100 24xlarge 200 48xlarge 400; "
    "p3: 2xlarge 10 8xlarge 10 16xlarge 25; p3dn: 24xlarge 100; p4d: 24xlarge 400; p4de: 24xlarge 400; "
    "p5: 4xlarge 100 48xlarge 3200; p5e: 48xlarge 3200; p5en: 48xlarge 3200; p6-b200: 48xlarge 3200; "
    "p6-b300: 48xlarge 6400",
    "gcp": "a2-highgpu: 1g 24 2g 32 4g 50 8g 100; a2-megagpu: 16g 100; a2-ultragpu: 1g 24 2g 32 4g 50 8g 100; "
    "a3-highgpu: 1g 25 2g 50 4g 100 8g 1000; a3-megagpu: 8g 1800; a3-ultragpu: 8g 3600; a4-highgpu: 8g 3600; "
    "g2-standard: 8 16 24 32 48 50 96 100; n1-highmem: 8 16 16 32 32 32 64 32",
    "azure": "Standard: NC4as_T4_v3 8 NC8as_T4_v3 8 NC16as_T4_v3 8 NC64as_T4_v3 32 NC24ads_A100_v4 20 "
    "NC48ads_A100_v4 40 NC96ads_A100_v4 80 NC40ads_H100_v5 40 NC80adis_H100_v5 80 ND40rs_v2 100 ND96asr_v4 1600 "
    "ND96amsr_A100_v4 1600 ND96isr_H100_v5 3200",
}
_BETWEEN = {"aws": ".", "gcp": "-", "azure": "_"}


def gbit_per_s(cloud: str, instance_type: str, gpus: int) -> float:
    """Between two such nodes."""
    known = _DOCUMENTED.get((cloud, instance_type))
    if known is not None:
        return known
    return next(speed for least, speed in UNKNOWN_GBIT_PER_S if gpus >= least)


def _parse_sizes() -> dict[tuple[str, str], float]:
    found = {}
    for cloud, families in _SIZES.items():
        for family in families.split("; "):
            name, _, sizes = family.partition(": ")
            words = sizes.split()
            for size, speed in zip(words[::2], words[1::2], strict=True):
                found[cloud, f"{name}{_BETWEEN[cloud]}{size}"] = float(speed)
    return found


_DOCUMENTED = MappingProxyType(_parse_sizes())
