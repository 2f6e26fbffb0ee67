"""Ray Serve's choice of a replica, made by `PrefixAffinity`.

Runs in the ingress, on the loop of its deployment handle.
https://docs.ray.io/en/latest/serve/advanced-guides/custom-request-router.html
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from astrai.deploy.forwarded import ForwardedRequest, Route
from astrai.deploy.prefix_affinity import PrefixAffinity

__all__ = ["PrefixRequestRouter"]


class PrefixRequestRouter(RequestRouter):
    """Reads the `Route` of the request that is the call's first argument."""

    def initialize_state(self, max_lead: int) -> None:
        self._affinity = PrefixAffinity(max_lead)
        self._open: dict[str, str] = {}  # Ray's id of a request that runs -> its replica

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of one replica each: the next is asked when one holds as many as it may."""
        route = _route_of(pending_request)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if pending_request is not None:
            # Without it Ray asks again at once, and not a little later, when all are full.
            pending_request.routing_context.should_backoff = True
        if route.replica in replicas:
            return [[replicas[route.replica]]]
        ranking = self._affinity.rank(route.page_keys, self._loads(replicas))
        return [[replicas[name]] for name in ranking]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        name = replica_id.unique_id
        self._open[pending_request.metadata.internal_request_id] = name
        self._affinity.record(_route_of(pending_request).page_keys, name)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._open.pop(internal_request_id, None)

    def _loads(self, replicas: dict[str, RunningReplica]) -> dict[str, int]:
        """Open requests of each: what this router sent, or what the replica last said if that is
        more, because other ingresses send to it too."""
        own = Counter(self._open.values())
        told = {
            name: self.replica_queue_len_cache.get(replica.replica_id) or 0
            for name, replica in replicas.items()
        }
        return {name: max(own[name], told[name]) for name in replicas}


def _route_of(pending_request: PendingRequest | None) -> Route:
    if pending_request is not None and pending_request.args:
        request = pending_request.args[0]
        if isinstance(request, ForwardedRequest):
            return request.route
    return Route()
