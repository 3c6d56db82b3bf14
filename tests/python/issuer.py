"""A small OpenID Connect issuer on loopback, with keys and signatures by openssl.

`python issuer.py FOLDER` runs one with its keys in that folder, and prints its address.
"""

import base64
import http.server
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.parse

AUDIENCE = "terrace"


def openssl(*arguments, data=b""):
    return subprocess.run(["openssl", *map(str, arguments)], input=data, check=True, capture_output=True).stdout


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Key:
    """A key pair of RS256 or ES256."""

    def __init__(self, folder, name, algorithm="RS256"):
        self.name, self.algorithm, self.file = name, algorithm, folder / f"{name}.key"
        kind = ["RSA", "-pkeyopt", "rsa_keygen_bits:2048"] if algorithm == "RS256" else ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        openssl("genpkey", "-algorithm", *kind, "-out", self.file)

    def jwk(self):
        common = {"kid": self.name, "use": "sig", "alg": self.algorithm}
        if self.algorithm == "RS256":
            modulus = openssl("rsa", "-in", self.file, "-noout", "-modulus").decode().strip().split("=")[1]
            return {**common, "kty": "RSA", "n": encoded(bytes.fromhex(modulus)), "e": "AQAB"}
        point = openssl("pkey", "-in", self.file, "-pubout", "-outform", "DER")[-64:]
        return {**common, "kty": "EC", "crv": "P-256", "x": encoded(point[:32]), "y": encoded(point[32:])}

    def sign(self, claims, **header):
        header = {"alg": self.algorithm, "kid": self.name, "typ": "JWT", **header}
        message = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = openssl("dgst", "-sha256", "-sign", self.file, data=message.encode())
        if self.algorithm == "ES256":
            signature = fixed(signature)
        return f"{message}.{encoded(signature)}"


def fixed(der):
    """The two numbers of an ECDSA signature, of 32 bytes each."""
    numbers, rest = b"", der[2:]
    while rest:
        length = rest[1]
        numbers += int.from_bytes(rest[2 : 2 + length], "big").to_bytes(32, "big")
        rest = rest[2 + length :]
    return numbers


class Issuer:
    """Publishes its keys, and gives tokens to clients that know its secret (client credentials, token exchange)."""

    SECRET = "secret of the client"
    SUBJECT_TOKEN = "a token of another system"
    REFRESH_TOKEN = "a token to get the next one with"

    def __init__(self, folder):
        self.keys = [Key(folder, "one")]
        self.lifetime_s = 600
        self.asked = []
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, value, status=200):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                issuer.asked.append(self.path)
                if self.path == "/.well-known/openid-configuration":
                    self.answer({"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys", "token_endpoint": f"{issuer.url}/token"})
                elif self.path == "/keys":
                    self.answer(issuer.key_set())
                else:
                    self.answer({}, 404)

            def do_POST(self):
                issuer.asked.append(self.path)
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                scheme, _, basic = self.headers.get("Authorization", "").partition(" ")
                if scheme == "Basic":
                    client, _, secret = base64.b64decode(basic).decode().partition(":")
                    form.setdefault("client_id", urllib.parse.unquote_plus(client))
                    form.setdefault("client_secret", urllib.parse.unquote_plus(secret))
                grant = form.get("grant_type", "")
                if grant == "client_credentials":
                    user = form.get("client_id") if form.get("client_secret") == issuer.SECRET else None
                elif grant == "refresh_token":
                    user = "ann" if form.get("refresh_token") == issuer.REFRESH_TOKEN else None
                else:
                    user = "ann" if form.get("subject_token") == issuer.SUBJECT_TOKEN else None
                if user is None:
                    self.answer({"error": "invalid_client"}, 401)
                    return
                self.answer({"access_token": issuer.token(user), "token_type": "Bearer", "expires_in": issuer.lifetime_s,
                             "refresh_token": issuer.REFRESH_TOKEN,
                             "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def key_set(self):
        return {"keys": [key.jwk() for key in self.keys]}

    def token(self, user, key=None, lifetime_s=None, **claims):
        expires = int(time.time()) + (self.lifetime_s if lifetime_s is None else lifetime_s)
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": user, "exp": expires, **claims}
        return (key or self.keys[0]).sign({name: value for name, value in claims.items() if value is not None})

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


if __name__ == "__main__":
    with Issuer(pathlib.Path(sys.argv[1])) as started:
        print(started.url, flush=True)
        threading.Event().wait()
