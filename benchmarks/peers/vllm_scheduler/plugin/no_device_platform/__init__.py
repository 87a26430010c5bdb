"""A vLLM platform without a device: configurations and schedulers can be built, nothing can run."""


def register() -> str:
    return "no_device_platform.platform.NoDevicePlatform"
