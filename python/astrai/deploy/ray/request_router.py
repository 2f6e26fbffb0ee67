"""Ray Serve's choice of a replica, made by `PrefixAffinity`.

Runs in the ingress, on the loop of its deployment handle.
https://docs.ray.io/en/latest/serve/advanced-guides/custom-request-router.html
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from astrai.deploy.forwarded import ForwardedRequest, Route
from astrai.deploy.prefix_affinity import PrefixAffinity

__all__ = ["PrefixRequestRouter"]


class PrefixRequestRouter(RequestRouter):
    """Reads the `Route` of the request that is the call's first argument."""

    def initialize_state(self, max_lead: int, follows_pages: bool) -> None:
        """follows_pages: False takes the least loaded replica, unless one of them is asked for."""
        self._follows_pages = follows_pages
        self._affinity = PrefixAffinity(max_lead)

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
        keys = route.page_keys if self._follows_pages else []
        ranking = self._affinity.rank(keys, self._loads(replicas))
        return [[replicas[name]] for name in ranking]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        self._affinity.record(_route_of(pending_request).page_keys, replica_id.unique_id)

    def _loads(self, replicas: dict[str, RunningReplica]) -> dict[str, int]:
        """Open requests of each: what it said with the last request that it took, and what this
        router has seen since. One that was silent for some seconds counts as idle."""
        told = self.replica_queue_len_cache
        return {name: told.get(replica.replica_id) or 0 for name, replica in replicas.items()}


def _route_of(pending_request: PendingRequest | None) -> Route:
    if pending_request is not None and pending_request.args:
        request = pending_request.args[0]
        if isinstance(request, ForwardedRequest):
            return request.route
    return Route()
