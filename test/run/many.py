"""Many connections that carry much once, and are quiet then: many.py serve|connect PORT loop|threads CONNECTIONS BYTES"""

import hashlib
import random
import selectors
import socket
import sys
import threading

mode, port, how, many, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
PART = 65536


def serve_threads(listener):
    def work(c):
        h, got = hashlib.md5(), 0
        while b := c.recv(PART):
            h.update(b)
            got += len(b)
            if got == size:
                c.sendall(h.hexdigest().encode())
        c.close()

    while True:
        c, _ = listener.accept()
        threading.Thread(target=work, args=(c,), daemon=True).start()


def serve_loop(listener):
    loop = selectors.DefaultSelector()
    loop.register(listener, selectors.EVENT_READ)
    have = {}
    while True:
        for key, _ in loop.select():
            if key.fileobj is listener:
                c, _ = listener.accept()
                c.setblocking(False)
                have[c] = [hashlib.md5(), 0]
                loop.register(c, selectors.EVENT_READ)
                continue
            c = key.fileobj
            try:
                b = c.recv(PART)
            except BlockingIOError:
                continue
            if not b:
                loop.unregister(c)
                del have[c]
                c.close()
                continue
            h = have[c]
            h[0].update(b)
            h[1] += len(b)
            if h[1] == size:
                c.send(h[0].hexdigest().encode())


def connect():
    data = random.Random(1).randbytes(size)
    want = hashlib.md5(data).hexdigest().encode()
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(many)]
    wrong = []

    def one(c):
        for at in range(0, size, PART):
            c.sendall(data[at:at + PART])
        if c.recv(len(want), socket.MSG_WAITALL) != want:
            wrong.append(c)

    if how == "threads":
        threads = [threading.Thread(target=one, args=(c,)) for c in connections]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    else:
        for c in connections:
            one(c)
    print("quiet", len(wrong), flush=True)
    sys.stdin.readline()


if mode == "serve":
    with socket.create_server(("127.0.0.1", port), backlog=1024) as s:
        serve_threads(s) if how == "threads" else serve_loop(s)
else:
    connect()
