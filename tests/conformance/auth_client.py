"""What the suite's auth/* client scenarios run: a gateway before a server that wants OAuth.

    auth_client.py TRUNKLINE URL

Credentials that the suite has prepared are in MCP_CONFORMANCE_CONTEXT; without them a person of a tenant agrees in a
browser, played by this program.
"""

import base64
import hashlib
import http.server
import json
import os
import socket
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

from client import Gateway, expect

KEY = "0123456789abcdef0123456789abcdef"
# Metadata of the suite's servers lead to this machine.
HERE = 'networks = ["127.0.0.0/8", "::1/128"]'


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


PLAIN = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)


def redirect_of(url):
    """Where the authorization server sends the browser."""
    try:
        PLAIN.open(url, timeout=10)
    except urllib.error.HTTPError as answer:
        return answer.headers.get("Location") or sys.exit(f"{url}: {answer.code} {answer.read()}")
    sys.exit(f"{url} redirects nowhere")


class Person:
    """A person of the tenant, with a browser."""

    def __init__(self, gateway, key):
        self.gateway, self.cookies = gateway, []
        self.send("/me/session", {"key": key})

    def send(self, path, body):
        headers = {"Trunkline-Page": "1", "Origin": self.gateway.base, "Cookie": "; ".join(self.cookies)}
        request = urllib.request.Request(self.gateway.base + path, json.dumps(body).encode(), headers)
        with PLAIN.open(request, timeout=20) as answer:
            for cookie in answer.headers.get_all("Set-Cookie") or []:
                self.cookies.append(cookie.split(";")[0])
            return json.loads(answer.read())

    def connect(self):
        url = self.send("/me/connect/target", {})["redirect"]
        back = urllib.parse.urlparse(redirect_of(url))
        brought = {name: value[0] for name, value in urllib.parse.parse_qs(back.query).items()}
        server = back.path.removeprefix("/oauth/callback").strip("/")
        return self.send("/me/callback", {**brought, **({"server": server} if server else {})})


def call(gateway, tool, key):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status, answer = gateway.send(f"/v1/servers/target/tools/{tool}", {}, headers)
    return status, json.loads(answer)


def by_consent(program, url, oauth, calls=1):
    """Calls as a tenant whose person agrees as often as it is asked to, within reason."""
    settings = f'sharing = "tenant"\n[servers.target.oauth]\ngrant = "authorization_code"\n{HERE}\n{oauth}'
    top = 'public_url = "{base}"\n'
    tables = f'[secrets]\nkeys = ["{KEY}"]\n[tenants.acme]\nservers = ["*"]\n'
    with Gateway(program, url, settings, top=top, tables=tables, anonymous=False) as gateway:
        key = gateway.key("acme")
        for _ in range(calls):
            for _ in range(3):
                status, answer = call(gateway, "test-tool", key)
                if status != 409:
                    break
                expect(answer["code"] == "connect_required", answer)
                try:
                    Person(gateway, key).connect()
                except urllib.error.HTTPError as error:
                    sys.exit(f"not connected: {error.read()}")
            expect(status == 200, answer)


def by_credentials(program, url, oauth):
    settings = f"[servers.target.oauth]\n{HERE}\n{oauth}"
    with Gateway(program, url, settings) as gateway:
        status, answer = call(gateway, "test-tool", None)
        expect(status == 200, answer)


# The key that signs the suite's ID tokens is nowhere published: it is found by a signature (SEC 1, 4.1.6).
P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
A, B = P - 3, 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)


def add(one, two):
    if one is None or two is None:
        return one or two
    (x, y), (u, v) = one, two
    if x == u and (y + v) % P == 0:
        return None
    slope = (3 * x * x + A) * pow(2 * y, -1, P) if one == two else (v - y) * pow(u - x, -1, P)
    third = (slope * slope - x - u) % P
    return third, (slope * (x - third) - y) % P


def times(number, point):
    total = None
    while number:
        if number & 1:
            total = add(total, point)
        point, number = add(point, point), number >> 1
    return total


def keys_of(token):
    """The two keys that may have signed a token."""
    message, signature = token.rsplit(".", 1)
    raw = base64.urlsafe_b64decode(signature + "==")
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    z = int.from_bytes(hashlib.sha256(message.encode()).digest(), "big")
    y = pow((r * r * r + A * r + B) % P, (P + 1) // 4, P)
    for root in (y, P - y):
        inverse = pow(r, -1, N)
        point = add(times(s * inverse % N, (r, root)), times(-z * inverse % N, G))
        text = [base64.urlsafe_b64encode(it.to_bytes(32, "big")).decode().rstrip("=") for it in point]
        yield {"kty": "EC", "crv": "P-256", "alg": "ES256", "x": text[0], "y": text[1]}


def publish(key):
    """Serves a set of one key, on a port of its own."""

    class Keys(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [key]}).encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def by_assertion(program, url, context):
    token, client = context["idp_id_token"], context["idp_client_id"]
    for key in keys_of(token):
        # The suite's tokens name no tenant: all of their audience are one.
        auth = (
            f'[auth.oauth]\nissuer = "{context["idp_issuer"]}"\naudience = "https://gateway.example/mcp"\n'
            f'client_id = "{client}"\njwks_url = "{publish(key)}"\ntenant_claim = "aud"\n'
            f'[tenants.{client}]\nservers = ["*"]\n'
        )
        oauth = (
            f'sharing = "tenant"\n[servers.target.oauth]\ngrant = "id_jag"\n{HERE}\n{credentials(context)}'
            f'[servers.target.oauth.identity_provider]\ntoken_url = "{context["idp_token_endpoint"]}"\n'
            f'client_id = "{client}"\n'
        )
        with Gateway(program, url, oauth, tables=auth, anonymous=False) as gateway:
            status, answer = call(gateway, "test-tool", token)
        if status == 200:
            return
    sys.exit(f"unexpected: {answer}")


def credentials(context):
    names = {"client_id": "client_id", "client_secret": "client_secret", "private_key_pem": "private_key"}
    return "".join(f"{own} = {json.dumps(context[name])}\n" for name, own in names.items() if name in context)


def main():
    program, url = sys.argv[1:]
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"].removeprefix("auth/")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    if scenario.startswith("client-credentials"):
        by_credentials(program, url, credentials(context))
    elif scenario == "enterprise-managed-authorization":
        by_assertion(program, url, context)
    elif scenario == "pre-registration":
        by_consent(program, url, credentials(context))
    elif scenario == "basic-cimd":
        # The document that the suite expects is at an address of its own.
        by_consent(program, url, 'client_id = "https://conformance-test.local/client-metadata.json"\n')
    elif scenario == "2025-03-26-oauth-metadata-backcompat":
        # The server has no metadata that name its authorization server.
        by_consent(program, url, f'issuer = "{url.removesuffix("/mcp")}"\n')
    elif scenario == "authorization-server-migration":
        by_consent(program, url, "", calls=3)
    else:
        by_consent(program, url, "")


main()
