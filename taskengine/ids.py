"""New ids."""

import uuid_utils


def new_id() -> str:
    """Return a UUIDv7 (RFC 9562): unique, and ordered by time even within a millisecond."""
    return str(uuid_utils.uuid7())
