"""The order of joins of a plan, as a line.

    (a b)            an inner hash join that builds a table of `a` and looks the rows of `b` up
    (a left-semi b)  other joins by their type; `nested` is a nested loop, `cross` a product
    [a | b]          a union
    {a, b}           `a` with the values of scalar subqueries `b`
"""

import re

INDENT = 2


class Node:
    def __init__(self, line: str):
        self.depth = (len(line) - len(line.lstrip())) // INDENT
        self.text = line.strip()
        self.name = re.match(r"\w+", self.text).group()
        self.children = []


def tree(plan: str) -> Node:
    """The root of a plan as EXPLAIN prints it."""
    path = []
    for line in filter(str.strip, plan.splitlines()):
        node = Node(line)
        del path[node.depth:]
        if path:
            path[-1].children.append(node)
        path.append(node)
    return path[0]


def order(node: Node) -> str:
    """The tables below a node in the order they are joined."""
    below = [order(child) for child in node.children]
    if node.name == "TierScanExec":
        return re.search(r"table=public\.(\w+)", node.text).group(1)
    if len(below) == 1:
        return below[0]
    if node.name in ("UnionExec", "InterleaveExec"):
        return f"[{' | '.join(below)}]"
    if node.name == "ScalarSubqueryExec":
        return f"{{{', '.join(below)}}}"
    if len(below) == 2 and "Join" in node.name:
        found = re.search(r"join_type=(\w+)", node.text)
        words = [] if node.name != "NestedLoopJoinExec" else ["nested"]
        words += ["cross"] if node.name == "CrossJoinExec" else []
        words += [re.sub(r"(?<=[a-z])(?=[A-Z])", "-", found.group(1)).lower()] if found else []
        words = [word for word in words if word != "inner"]
        return f"({' '.join([below[0], *words, below[1]])})"
    return f"{node.name}({', '.join(below)})" if below else node.name
