"""Task types that ship with the engine. httpx is loaded by the first call, not by this import."""

from taskengine.tasks.addresses import AddressNotAllowed as AddressNotAllowed
from taskengine.tasks.blocking import BlockingDownstream as BlockingDownstream
from taskengine.tasks.blocking import http_post_blocking as http_post_blocking
from taskengine.tasks.downstream import HttpxDownstream as HttpxDownstream
from taskengine.tasks.http import HttpResult as HttpResult
from taskengine.tasks.http import http_post as http_post
from taskengine.tasks.inflate import ResponseTooLarge as ResponseTooLarge

__all__ = [
    "AddressNotAllowed",
    "BlockingDownstream",
    "HttpResult",
    "HttpxDownstream",
    "ResponseTooLarge",
    "http_post",
    "http_post_blocking",
]
