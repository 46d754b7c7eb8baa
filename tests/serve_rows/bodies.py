"""Hundreds of malformed JSON bodies to every POST route: always 4xx with the four keys of an error."""

import collections
import http.client
import json
import random

from .world import Client, Measure, Row, World, exactly

GOOD = [
    b'{"class": "star", "seed": 7, "steps": 3, "width": 16, "height": 16, "previews": true}',
    b'{"prompt": "a star", "n": 2, "size": "16x16", "stream": false, "user": null}',
    b'{"prompt": "star", "steps": 3, "override_settings": {"sd_model_checkpoint": "tiny"}, "x": [1, 2.5]}',
    b'{"picture": "0123456789abcdef0123456789abcdef"}',
]
BY_HAND = [
    b"", b" ", b"\n", b"\xff\xfe{\x00}\x00", b"null", b"true", b"false", b"0", b"-", b"1e",
    b'"x"', b"[]", b"[{}]", b"[[[[", b"{{}}", b"{]", b"[}", b"}", b"{", b'{"', b'{"a', b'{"a"', b'{"a":',
    b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{,"a":1}', b'{"a" 1}', b'{"a"::1}', b'{"a":1 "b":2}', b"{a:1}",
    b"{'a':1}", b'{1:1}', b'{null:1}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":nan}',
    b'{"a":+1}', b'{"a":01}', b'{"a":1.}', b'{"a":.5}', b'{"a":1e}', b'{"a":1e+}', b'{"a":0x1}', b'{"a":1_0}',
    b'{"a":--1}', b'{"a":"\n"}', b'{"a":"\x00"}', b'{"a":"\\x41"}', b'{"a":"\\u12"}', b'{"a":"\\ud800"}',
    b'{"a":"\\udc00\\ud800"}', b'{"a":"\xc0\x80"}', b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\\"}',
    b'{"\xff":1}', b'{"a":tru}', b'{"a":True}', b'{"a":None}', b'{"a":undefined}', b'{"a":1}{}', b'{}{}',
    b'{"a":1}x', b'{}\x00', b'\x00{}', b'{"a":1;}', b"/**/{}", b"{} // no", b"{/**/}", b"<xml/>", b"a=b&c=d",
    b'{"a":1,"a":2}', b'{"a":{"b":1,"b":2}}', b"{" * 1000, b"[" * 100_000, b'{"a":' * 1000, b'{"a":[' * 500,
    b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", b'"' + b"a" * 70_000, b"9" * 400 + b"}", b'{"a":' + b"9" * 400,
    b'{"a":"' + b"\\u0041" * 5000, b"\x1f\x8b\x08\x00", b"\x89PNG\r\n\x1a\n", b"%PDF-1.7", b"--b\r\n\r\n",
]  # fmt: skip
SIGNS = b'{}[]",:\\'


def is_object(body: bytes) -> bool:
    """Whether a strict reader takes it: one object, every key once, not deep, numbers as JSON has them."""

    def once(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def never(_):
        raise ValueError

    if body.count(b"[") > 16:
        return False
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=once, parse_constant=never)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # no half of a pair
        return isinstance(value, dict)
    except (ValueError, RecursionError):
        return False


def malformed(count: int) -> list[bytes]:
    """Those above, and good ones that are cut or have a sign too few, too many or another."""
    chance, found = random.Random(5), dict.fromkeys(BY_HAND)
    while len(found) < count:
        body = bytearray(chance.choice(GOOD))
        place = chance.randrange(len(body))
        kind = chance.randrange(4)
        if kind == 0:
            del body[place:]
        elif kind == 1:
            body[place] = chance.choice(SIGNS)
        elif kind == 2:
            body.insert(place, chance.choice(SIGNS))
        else:
            body[place] = chance.choice(b"\x00\x01\x7f\x80\xc3\xff")
        if not is_object(bytes(body)):
            found[bytes(body)] = None
    assert not any(is_object(body) for body in found)
    return list(found)[:count] if count < len(BY_HAND) else list(found)


def post_routes(client: Client, stream: str) -> list[str]:
    """Of /openapi.json, so that a new route is among them."""
    paths = client.json("GET", "/openapi.json")["paths"]
    return [path.replace("{id}", stream) for path, methods in paths.items() if "post" in methods]


def bodies(world: World) -> list[Measure]:
    count = world.number(320, 150)
    outcomes: collections.Counter[str] = collections.Counter()
    wrong = []
    with world.serve(world.tiny, world.clips) as server:
        client = Client(server)
        live = {"model": "causal", "prompt": "a star", "fps": 1}
        stream = client.json("POST", "/pom/v1/streams", live)["id"]
        routes = post_routes(client, stream)
        for path in routes:
            for body in malformed(count):
                # Without a body it is no malformed one where a route needs none.
                if body == b"" and path.rsplit("/", 1)[1] in ("interrupt", "skip", "fork"):
                    continue
                try:
                    status, _, answer = client.ask("POST", path, body)
                    error = json.loads(answer)["error"] if status >= 400 else None
                    good = 400 <= status < 500 and set(error) == {"message", "type", "param", "code"}
                except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as failure:
                    status, good = f"{failure!r}", False
                    client = Client(server)
                outcomes[f"{status}"[:1] + "xx"] += 1
                if not good:
                    wrong.append((path, body[:60], status))
        assert server.get("/health").json["status"] == "ok"
    for one in wrong[:20]:
        world.say(f"  {one}")
    return [
        Measure(
            "bodies x POST routes", "≥ 300 x all", f"{count} x {len(routes)}", count >= world.number(300, 100)
        ),
        exactly("answers other than 4xx with the four keys", 0, len(wrong)),
        exactly("answers 5xx", 0, outcomes["5xx"]),
    ]


ROWS = [Row("json", "320 malformed JSON bodies x every POST route", bodies)]
