"""The manifest for KubeRay fits the application."""

import kubernetes_validate
import yaml

from paceline.integrations.ray.application import RaySettings, read
from paceline.server.settings import ServerSettings
from paceline.wiring.settings import pop_settings
from tests.test_ops import resource


def test_ray_accepts_the_application_of_the_ray_service() -> None:
    spec = resource("RayService")["spec"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert application["import_path"] == "paceline.integrations.ray:app"
    given = read(application["args"])
    ray: RaySettings = pop_settings(RaySettings, given)
    ServerSettings(drain_s=given["drain_s"], log_format=given["log_format"])
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["maxReplicas"] == ray.max_replicas
    groups = (spec["rayClusterConfig"]["headGroupSpec"], workers)
    for number, group in enumerate(groups):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"group-{number}"},
            "spec": group["template"]["spec"],
        }
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    worker = workers["template"]["spec"]
    assert worker["terminationGracePeriodSeconds"] > given["drain_s"]
    (container,) = worker["containers"]
    reserved = ray.num_cpus + ray.entries  # an entry reserves one
    assert int(container["resources"]["requests"]["cpu"]) >= reserved
