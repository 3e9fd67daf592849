"""A cluster of two nodes on this machine, run by test_ray_nodes.py: engines go where their resources are."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import ray
from ray.cluster_utils import Cluster

from teola_plugin import runtime
from teola_plugin.errors import EngineError
from teola_plugin.profile import Profile
from teola_plugin.runtime import ray_engines as rays
from teola_plugin.runtime.local import Query
from teola_plugin.runtime.ray_cluster import connect
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.chaos.ray_world import CONFIGS


def main() -> None:
    said: dict[str, object] = {}
    head = {"num_cpus": 2, "include_dashboard": False, "resources": {"near": 4}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    far_node = cluster.add_node(num_cpus=2, resources={"far": 4})
    connect(cluster.address)
    embedder = replace(CONFIGS["embedder"], profile=Profile.affine(0.01))
    near = rays.start(replace(embedder, name="near", resources={"near": 1}))
    far = rays.start(replace(embedder, name="far", resources={"far": 1}, instances=2))
    said["instances"] = far.hello.instances
    said["nodes"] = len({node for engine in (near, far) for node in rays.nodes_of(engine.name)})
    said["far"] = len(set(rays.nodes_of("far")) & {far_node.node_id})
    replies = [Reply() for _ in range(40)]
    runtime.host.submit(near, "embedding", [f"t{i}" for i in range(20)], {}, replies[:20])
    runtime.host.submit(far, "embedding", [f"t{i}" for i in range(20)], {}, replies[20:])
    vectors = [reply.result().tobytes() for reply in replies]
    said["equal"] = vectors[:20] == vectors[20:]
    try:
        rays.start(replace(embedder, name="nowhere", resources={"far": 3}, instances=2))
    except EngineError as e:
        said["refused"] = str(e)
    cluster.remove_node(far_node, allow_graceful=False)
    while sum(node["Alive"] for node in ray.nodes()) > 1:
        time.sleep(0.1)
    time.sleep(3)  # its workers notice by themselves
    late = Reply()
    by_s = time.monotonic() + 8
    runtime.host.submit(far, "embedding", ["late"], {}, [late], query=Query(1, Terms("", by_s), by_s - 8))
    try:
        late.result()
    except Exception as e:  # it is what this is about
        said["late"] = type(e).__name__
    again = Reply()
    runtime.host.submit(near, "embedding", ["again"], {}, [again])
    said["near"] = again.result().shape[0]
    print(json.dumps(said), flush=True)
    runtime.host.close()


if __name__ == "__main__":
    main()
