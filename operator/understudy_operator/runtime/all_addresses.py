"""A socket that listens on all addresses of a pod: IPv6 and IPv4, or only IPv4 if the kernel has no IPv6."""

import socket


def bind_all_addresses(port: int, receive_buffer: int) -> socket.socket:
    """Bind, but do not listen yet. receive_buffer: bytes in the kernel for each connection."""
    both = socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
    if both:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    listener.setblocking(False)
    listener.bind(("", port))
    return listener
