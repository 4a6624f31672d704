"""Reads a step's text: its tree, and the kinds of the names and expressions in it."""

import ast
import itertools

from grader.text import syntax_tree

ATOMS = ast.Name | ast.Constant | ast.Call | ast.Subscript | ast.Attribute
# Functions whose arguments are known integers, or have no alternative.
FIXED = {"full", "program_id", "arange", "float", "load", "dot", "range", "empty_like"}


class Source:
    """Says where nodes are in the text, and of what kind their values are.

    kinds, leaves, wrong, calls: as in repair.changes().
    """

    def __init__(self, text: str, kinds: dict[str, str], leaves: tuple[str, ...], wrong: str,
                 calls: tuple[str, ...] = ()):
        self.raw, self.kinds, self.leaves = text.encode(), kinds, leaves
        self.starts = [0, *itertools.accumulate(map(len, self.raw.splitlines(keepends=True)))]
        function = syntax_tree(text).body[0]
        self.kernel, self.body = bool(function.decorator_list), function.body[:-1]  # no _leave()
        self.nodes = [node for statement in self.body for node in ast.walk(statement)]
        self.parents = {child: node for node in self.nodes
                        for child in ast.iter_child_nodes(node)}
        self.bound = {node.id for node in self.nodes if isinstance(node, ast.Name)
                      and isinstance(node.ctx, ast.Store)}
        self.across = "[:, None]" if self.kernel else "[..., None]"
        before = leaves[:leaves.index(wrong)] if wrong in leaves else ()
        self.makes = self.slice({wrong}) or set(map(id, self.body))
        self.makes_right = self.slice(set(before))
        self.calls = () if wrong else calls
        self.targets = {node.target.id for node in self.nodes if isinstance(node, ast.For)
                        and isinstance(node.target, ast.Name)}
        for node in self.nodes:  # of a step that crashed no values are known
            pairs = () if not isinstance(node, ast.Assign) else zip(
                *(getattr(one, "elts", [one]) for one in (node.targets[0], node.value)),
                strict=False)
            for target, value in pairs:
                if isinstance(target, ast.Name) and (kind := self.kind(value)):
                    kinds.setdefault(target.id, kind)

    def slice(self, names: set[str]) -> set[int]:
        """The statements that these names, or what is stored in memory of these names, depend on.
        """
        wanted, found = set(names), set()
        pointers = {f"{name}_ptr" for name in names}
        for statement in reversed(self.body):
            own = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            bound = {node.id for node in own if isinstance(node.ctx, ast.Store)}
            if bound & wanted or isinstance(statement, ast.Expr) and pointers & {
                    node.id for node in own}:
                found.add(id(statement))
                wanted |= {node.id for node in own} - bound
        return found

    def before(self, line: int | None) -> list[ast.stmt]:
        """The statement in this line, and those above that what it reads depends on."""
        here = [node for node in self.body if line and node.lineno <= line <= node.end_lineno]
        into = self.slice({node.id for one in here for node in ast.walk(one)
                           if isinstance(node, ast.Name)})
        return here + [node for node in self.body if here and id(node) in into
                       and node.lineno < here[0].lineno]

    def late(self, node) -> float:
        """How much later to try a change here than in code that only the wrong name depends on;
        or, where a loop visits wrong tiles, than outside of what its calls pass on."""
        passed, given = False, isinstance(node, ast.Constant) or self.of(node) in self.targets
        while node in self.parents:
            node = self.parents[node]
            passed = passed or isinstance(node, ast.Call) and self.of(node.func) in self.calls
        return 3 * (id(node) not in self.makes) + 1.5 * (
            id(node) in self.makes_right or passed and not given)

    def read_later(self, node) -> bool:
        """Whether later code of the step reads what this statement makes; an off-by-one may then
        be there."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        made = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)
                and isinstance(one.ctx, ast.Store)}
        return any(isinstance(one, ast.Name) and one.id in made
                   and isinstance(one.ctx, ast.Load) and one.lineno > node.end_lineno
                   for one in self.nodes)

    def span(self, node) -> tuple[int, int]:
        return (self.starts[node.lineno - 1] + node.col_offset,
                self.starts[node.end_lineno - 1] + node.end_col_offset)

    def replaced(self, parts: list[tuple[int, int, str]]) -> str:
        """The text with each part's bytes, from begin to end, replaced."""
        text = self.raw
        for begin, end, new in sorted(parts, reverse=True):
            text = text[:begin] + new.encode() + text[end:]
        return text.decode()

    def of(self, node) -> str:
        begin, end = self.span(node)
        return self.raw[begin:end].decode()

    def inner(self, node) -> str:
        """Its text as an operand, in brackets if necessary."""
        return self.of(node) if isinstance(node, ATOMS) else f"({self.of(node)})"

    def around(self, node):
        """The expression or statement to quote for a small node."""
        small = ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.UnaryOp | ast.Slice
        while isinstance(node, small | ast.keyword | ast.Tuple) and node in self.parents:
            node = self.parents[node]
        return node

    def kind(self, node) -> str:
        """The kind of an expression, if its parts tell, or "" """
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id, "")
        if isinstance(node, ast.Constant):
            return "number"
        if isinstance(node, ast.Compare) or isinstance(
                getattr(node, "op", None), ast.BitAnd | ast.BitOr):
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (
                node.left, *node.comparators)
            return max(self.kind(side)[:1] * (self.kind(side)[:1].isdigit())
                       for side in sides) + " b"
        if isinstance(node, ast.BinOp):
            sides = sorted((self.kind(node.left), self.kind(node.right)))
            return "" if "" in sides else next((
                one for one in ("pointers", "2 f", "1 f", "pointer", "2 i", "1 i") if one in sides),
                sides[0])
        if isinstance(node, ast.Subscript) and "None" in self.of(node.slice):
            return self.kind(node.value).replace("1 ", "2 ")
        if isinstance(node, ast.Subscript) and ".shape" in self.of(node.value):
            return "number"
        if isinstance(node, ast.Call):
            last = self.of(node.func).rpartition(".")[2]
            if last in ("exp", "exp2") and node.args:
                return self.kind(node.args[0])
            return {"arange": "1 i", "cdiv": "number", "program_id": "number",
                    "dot": "2 f", "trans": "2 f"}.get(last, "")
        return ""

    def is_operand(self, node) -> bool:
        """Whether it is a whole operand: assigned, an argument, or a side of an operator."""
        parent = self.parents.get(node)
        if not isinstance(node, ATOMS | ast.BinOp) or isinstance(
                getattr(node, "ctx", None), ast.Store) or self.kind(node) in ("tuple", "pointer"):
            return False
        if isinstance(parent, ast.Call):
            function = self.of(parent.func)
            return node is not parent.func and (function.rpartition(".")[2] not in FIXED
                                                or function in ("range", "tl.dot"))
        if isinstance(parent, ast.Tuple):
            return isinstance(self.parents.get(parent), ast.Assign)
        return isinstance(parent, ast.Assign | ast.AugAssign | ast.BinOp | ast.Compare) \
            or isinstance(parent, ast.IfExp) and node is not parent.test
