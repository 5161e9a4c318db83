"""HTTP requests that follow no redirect: they may carry a password, which only the given address may see."""

from functools import cache
from typing import Any
from urllib.request import HTTPRedirectHandler, OpenerDirector, build_opener


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_redirect: Any, **_more: Any) -> None:
        return None


@cache
def opener() -> OpenerDirector:
    """Return the opener of this process. It loads the system's CA certificates at first use: few processes need it."""
    return build_opener(_NoRedirect)
