"""The platform class; it leaves every configuration as it was given."""

from vllm.platforms.interface import UnspecifiedPlatform


class NoDevicePlatform(UnspecifiedPlatform):
    """Answers as the CUDA platform does where the scheduler's configuration asks."""

    device_type = "cpu"
    device_name = "no device"

    @classmethod
    def is_async_output_supported(cls, enforce_eager: bool | None) -> bool:
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True
