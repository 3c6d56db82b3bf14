"""What those see of statements of others who may watch them: no literals, whichever way they look; with ADBC and curl."""

import json

from test_audit import ANN, BOB, ROOT, closed, eventual
from test_users import curl, refusal, run

TEXT, NUMBER = "geheim", "4711081517"


def by_sql(server, user, password):
    logged = "SELECT sql, error, error_kind FROM system.query_log WHERE user_name = 'ann'"
    shown = ("SELECT sql, error FROM system.queries WHERE user_name = 'ann'", logged, "SELECT text FROM system.audit WHERE user_name = 'ann'")
    return [str(run(server, sql, user, password)) for sql in shown]


def by_http(server, user, password):
    login = ("-u", f"{user}:{password}")
    items = json.loads(curl(server, "/api/v1/queries?limit=1000", *login)[1])["items"]
    items = [item for item in items if item["user"] == "ann"]
    alone = [json.loads(curl(server, f"/api/v1/queries/{item['id']}", *login)[1]) for item in items]
    return [str([(item["sql"], item["error"]) for item in found]) for found in (items, alone)]


def test_literals_are_for_their_user_and_superusers(tmp_path):
    with closed(tmp_path, what="all") as server:
        run(server, "CREATE SCHEMA shop", *ANN)
        run(server, "CREATE TABLE shop.notes (id BIGINT, note VARCHAR)", *ANN)
        run(server, f"INSERT INTO shop.notes VALUES ({NUMBER}, '{TEXT}')", *ANN)
        run(server, f"SELECT id FROM shop.notes WHERE note = E'{TEXT}' -- {TEXT}", *ANN)
        # One whose error has the value, and one whose quotes do not match.
        assert TEXT in refusal(server, f"SELECT CAST('{TEXT}' AS BIGINT)", *ANN)[1]
        refusal(server, f"SELECT '{TEXT}", *ANN)
        run(server, "GRANT MONITOR ON SERVER TO bob", *ROOT)
        assert curl(server, "/api/v1/queries", "-u", ":".join(ANN))[0] == 403, "over HTTP MONITOR alone sees statements"
        for shown in by_sql(server, *ANN) + by_sql(server, *ROOT) + by_http(server, *ROOT):
            assert shown.count(TEXT) >= 5 and NUMBER in shown, shown
        for shown in by_sql(server, *BOB) + by_http(server, *BOB):
            assert TEXT not in shown and NUMBER not in shown, shown
            for text in ("INSERT INTO shop.notes VALUES (?, ?)", "SELECT id FROM shop.notes WHERE note = ?", "SELECT CAST(? AS BIGINT)"):
                assert text in shown, shown
        assert all("invalid_argument" in shown for shown in (*by_sql(server, *BOB)[:2], by_http(server, *BOB)[0]))
        # The file is a proof of what was done, and its reader somebody who may read all files of the server.
        assert eventual(server, action="insert")["text"] == f"INSERT INTO shop.notes VALUES ({NUMBER}, '{TEXT}')"
        assert TEXT not in server.output() and NUMBER not in server.output()
