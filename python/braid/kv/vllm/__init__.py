"""vLLM's door: KVTransferConfig(kv_connector="BraidConnector",
kv_connector_module_path="braid.kv.vllm", kv_role="kv_both").

kv_connector_extra_config:
    transfer_mode   "pull" (default: the decoder reads what the prefiller holds) or "push" (the
                    prefiller writes, layer by layer while it computes)
    side_channel_host, side_channel_port    where decoders ask for addresses; left out:
                    VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT, else localhost and 5600. 0: any
    kv_lease_duration   seconds for which a prefiller keeps pages for a silent decoder: 30
    kv_silence      seconds after which a peer that says nothing is lost: 10
    kv_deadline     seconds for a load: 120
    kv_patience     seconds for which a step waits for those who read blocks of preempted requests,
                    before their loads end badly: 1
    engine          a dictionary: arguments of braid.Engine (nics, hosts, token, ...)

docs/kv.md has what to type and what was run. Written for vLLM 0.32.
"""

from braid.kv.vllm.connector import BraidConnector

__all__ = ["BraidConnector"]
