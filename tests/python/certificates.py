"""Certificates for tests, made by openssl: authorities, and what they sign."""

import pathlib
import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority; its certificate is `ca`."""

    def __init__(self, folder, name):
        self.folder, self.name = pathlib.Path(folder), name
        self.ca, self.key = self.folder / f"{name}.pem", self.folder / f"{name}.pem.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 30,
                "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.ca)

    def issue(self, name, *hosts, days=30):
        """Files of a new certificate and its key, in that order; the same paths for the same name."""
        cert, key, request, extensions = (self.folder / f"{name}.{ending}" for ending in ("crt", "key", "csr", "ext"))
        names = [f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts]
        extensions.write_text(f"subjectAltName={','.join(names)}\n" if names else "basicConstraints=CA:FALSE\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", request)
        # Renewed as tools renew them: a new file takes the name of the old one.
        fresh = cert.with_suffix(".new")
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.key, "-CAcreateserial", "-days", days,
                "-extfile", extensions, "-out", fresh)
        fresh.rename(cert)
        return cert, key
