"""Lists the changes to try on a step's text: at one place, or at all places that read the same.

They undo slips: a wrong comparison, operator, number or name; two things exchanged; a factor, term
or mask that is missing or should not be there; a line in the wrong place.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from grader.step_checks.sites import FIXED, Source

# The ids of mistakes, in the order in which they are tried: things removed or replaced come first,
# things added last, because an addition may make up for a mistake elsewhere.
FIRST = ("wrong-comparison", "wrong-flag", "wrong-operator", "sides-exchanged",
         "wrong-assignment", "one-too-many", "wrong-condition")
SECOND = ("wrong-number", "wrong-function", "wrong-axes", "wrong-name", "arguments-exchanged",
          "wrong-argument", "names-exchanged", "wrong-grouping")
THIRD = ("wrong-dtype", "one-missing", "bound-missing", "wrong-order", "line-too-many")
RANKS = {id: rank for rank, ids in enumerate((FIRST, SECOND, THIRD)) for id in ids}
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//",
             ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|", ast.MatMult: "@"}
MEANT = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "%", "%": "//", "&": "|", "|": "&"}
FUNCTIONS = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log", "log1p": "log",
             "max": "sum min", "sum": "max", "maximum": "minimum", "minimum": "maximum",
             "amax": "sum", "mean": "sum", "zeros": "ones", "ones": "zeros",
             "zeros_like": "ones_like", "empty": "zeros", "ones_like": "zeros_like",
             "empty_like": "zeros_like"}
BASES = {"LOG2E", "LN2"}
MISPLACED = "The new axis of `{}` is in the wrong place."
ENDS = "N", "M", "K", "D", "width"
COMPARED = re.compile(rf"(\w+)(?:\[[^]]*\])? *< *(?:{'|'.join(ENDS)})\b")  # x of x[:, None] < N
MODULES = {"tl", "triton", "torch", "math", "range", "float", "min", "max", "slice"}
SIGNS = (  # a number's name -> forms in which it may be missing, and when to try them
    ("(?i)scale|log2e|ln2", "*/", 0), ("stride", "*", 0.1), ("start|first|begin", "+-", 0.2),
    ("BLOCK|TILE|^[NMD]K?$", "*+-", 0.4), ("tiles|^H(Q|KV)$", "%/*", 0.4), ("", "*+%", 1))


@dataclass(frozen=True)
class Edit:
    """Puts new in place of the bytes begin ... end.  key: shared by edits of places that read the
    same.  part: the piece that is changed, missing or superfluous, or what must hold.  tier: the
    part of the rank that all edits of this kind in such a statement share.  said: what to say about
    it, if that is more than its kind tells."""

    id: str
    line: int
    rank: float
    begin: int
    end: int
    new: str
    node: ast.AST  # quoted to the student
    key: tuple
    part: str = ""
    tier: float = 0
    said: str = ""


class Text(Source):
    """The edits of a step's text."""

    def all(self, crashed: int | None = None, shapes: bool = False) -> list[list[Edit]]:
        """Single edits, and those of places that read the same together, the likeliest first.
        crashed: the line that raised an error; only what led to it is changed then.  shapes:
        whether a shape is wrong."""
        edits = [edit for node in self.nodes for make in (
            self.operators, self.constants, self.functions, self.axes, self.names,
            self.arguments, self.terms, *[self.reduced] * shapes) for edit in make(node)]
        bodies = [self.body, *(body for node in self.nodes for field in ("body", "orelse")
                               if isinstance(body := getattr(node, field, None), list))]
        edits += [edit for body in bodies for edit in self.statements(body)]
        if into := self.before(crashed):
            edits = [edit for edit in edits if any(
                node.lineno <= edit.line <= node.end_lineno for node in into)]
        alike: dict[tuple, list[Edit]] = {}
        for edit in edits:  # a name occurs often; change one place only
            if edit.id != "wrong-name" or edit.part.strip("`") in BASES \
                    or edit.key[0] == "argument":
                alike.setdefault(edit.key, []).append(edit)
        found = [[edit] for edit in edits] + [same for same in alike.values() if len(same) > 1]
        found += self.divided()
        return sorted(found, key=lambda some: some[0].rank)

    def divided(self) -> Iterator[list[Edit]]:
        """Quotients and remainders of the same numbers, in two lines or more, exchanged."""
        places: dict[tuple[str, str], list[ast.BinOp]] = {}
        for node in self.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                places.setdefault((self.inner(node.left), self.inner(node.right)), []).append(node)
        for (left, right), nodes in places.items():
            if all(len({*values}) > 1 for values in zip(*(
                    (type(node.op), node.lineno) for node in nodes), strict=True)):
                yield [self.edit("wrong-operator", node, f"({left} {sign} {right})", node,
                                 said="`//` and `%` are swapped.") for node in nodes
                       for sign in [MEANT[OPERATORS[type(node.op)]]]]

    def changed(self, edits: list[Edit]) -> str:
        """The text with these edits made."""
        return self.replaced([(edit.begin, edit.end, edit.new) for edit in edits])

    def quoted(self, edit: Edit) -> str:
        """The code to show: the expression, or the whole line if that is long."""
        text = self.of(edit.node)
        if len(text) > 72 or "\n" in text:
            text = self.raw.splitlines()[edit.line - 1].decode().strip()
        return text if len(text) <= 72 else text[:69] + "..."

    def edit(self, id: str, node, new: str, shown=None, late: float = 0, key=(), part="", said=""
             ) -> Edit:
        """Put new in place of node.  shown: the code to quote; late: try it after its kind."""
        tier = RANKS[id] + self.late(node)
        return Edit(id, node.lineno, tier + late, *self.span(node), new,
                    shown or self.around(node), key or (id, self.of(node), new), part, tier, said)

    def expression(self, id: str, node, new: str, shown=None, late: float = 0, part: str = "",
                   said: str = "") -> Edit:
        """Put an expression in place of another."""
        bare = isinstance(self.parents.get(node), ast.stmt | ast.Call | ast.keyword | None)
        return self.edit(id, node, new if bare else f"({new})", shown, late, part=part, said=said)

    def rounded(self, id: str, node, new: str, function: str, ways: tuple[str, str]) -> Edit:
        """Round a quotient the other way.  ways: its own and the other one."""
        parent = self.parents.get(node)
        whole = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)
        said = f"`{function}` rounds {ways[0]}, but this must be rounded {ways[1]}."
        return self.expression(id, node, new, parent if whole else node, part=f"`{function}`",
                               said=said)

    # ---------------------------------------------------------------- expressions
    def operators(self, node) -> Iterator[Edit]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.inner(node.left), self.inner(node.comparators[0])
            for new in ("<", "<=", ">", ">="):
                yield self.edit("wrong-comparison", node, f"{left} {new} {right}")
            if self.kind(node.left) == self.kind(node.comparators[0]) in ("1 i", ""):
                sign = self.of(node)[len(self.of(node.left)):-len(self.of(node.comparators[0]))]
                for one, other in (("[:, None]", "[None, :]"), ("[None, :]", "[:, None]")):
                    yield self.edit("wrong-axes", node, f"{left}{one}{sign}{right}{other}")
        elif isinstance(node, ast.If | ast.IfExp):
            yield self.edit("wrong-comparison", node.test, f"not ({self.of(node.test)})")
            for new, part in (("True", "narrow"), ("False", "wide")):
                yield self.edit("wrong-condition", node.test, new, node.test, 0.5, part=part)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            old, left, right = OPERATORS[type(node.op)], self.inner(node.left), self.inner(
                node.right)
            if not self.kernel and old in "*@":
                yield self.expression("wrong-operator", node, f"{left} {'*@'.replace(old, '')} "
                                      f"{right}", node, part=f"`{old}`")
            # x / log2(e) is x * ln(2): there the name is wrong, and not the operator.
            if old in MEANT and not (old == "*" and {left, right} & BASES):
                yield self.expression("wrong-operator", node, f"{left} {MEANT[old]} {right}", node,
                                      part=f"`{old}`")
            if old in "+*" and not isinstance(node.right, ast.Constant):
                yield self.expression("wrong-operator", node, f"{left} {'+*'.replace(old, '')} "
                                      f"{right}", node, 0.5, f"`{old}`")
            if old in ("-", "/", "//", "%", "@"):
                yield self.expression("sides-exchanged", node, f"{right} {old} {left}", node)
            if old == "/":
                yield self.expression("wrong-operator", node, f"{left} // {right}", node,
                                      part="`/`")
            if old == "//":
                yield self.rounded("wrong-operator", node, f"({left} + {right} - 1) // {right}",
                                   old, ("down", "up"))
            if isinstance(node.left, ast.Call) and len(node.left.args) == 1 and re.search(
                    r"\b(exp2?|log2?)$", self.of(node.left.func)):
                function, inner = self.of(node.left.func), self.inner(node.left.args[0])
                yield self.expression("wrong-grouping", node, f"{function}({inner} {old} {right})",
                                      node, said=f"`{old} {right}` belongs inside of `{function}`.")
            for one in (node.left, node.right):
                other = f"{old} {right}" if one is node.left else f"{left} {old}"
                yield self.expression("one-too-many", node, self.of(one), node, 0.5, f"`{other}`")
                if isinstance(one, ast.BinOp) and type(one.op) is not type(node.op) \
                        and type(one.op) in OPERATORS:
                    a, b, inner = self.inner(one.left), self.inner(one.right), OPERATORS[
                        type(one.op)]
                    new, now, later = (
                        f"{a} {inner} ({b} {old} {right})", f"{old} {right}", f"{a} {inner}"
                        ) if one is node.left else (
                        f"({left} {old} {a}) {inner} {b}", f"{left} {old}", f"{inner} {b}")
                    yield self.expression("wrong-grouping", node, new, node, part=(
                        f"`{now}` must be computed before `{later}`"))

    def constants(self, node) -> Iterator[Edit]:
        parent = self.parents.get(node)
        around = self.parents.get(parent) if isinstance(parent, ast.UnaryOp) else parent
        if isinstance(around, ast.Call) and self.of(around.func).endswith("transpose"):
            return  # of an axis with itself it does nothing, which is said of the whole call
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield self.expression("wrong-operator", node, self.of(node.operand),
                                  said="The minus sign should not be there.")
            if isinstance(node.operand, ast.Constant):
                for new in ("-2", "-1", "0", "1", 'float("-inf")'):
                    yield self.number(node, new)
        if not isinstance(node, ast.Constant) or isinstance(parent, ast.UnaryOp | ast.Expr):
            return
        value, new = node.value, ()
        if isinstance(value, bool):
            part = f"{parent.arg}=" if isinstance(parent, ast.keyword) else "The flag"
            yield self.edit("wrong-flag", node, str(not value), part=part)
            yield self.edit("wrong-flag", node, str(not value), late=0.1, key=("all flags",),
                            part=part)
        elif isinstance(value, int):
            new = [*dict.fromkeys((value + 1, value - 1, 0, 1))]
            if isinstance(parent, ast.Call | ast.BinOp):
                new += [name for name, kind in self.kinds.items() if kind == "number"]
        elif isinstance(value, float):
            new = "0.0", "1.0", 'float("-inf")', 'float("inf")'
        elif isinstance(value, str) and value.lstrip("-") == "inf":
            yield self.edit("wrong-number", node, f'"{"" if value[0] == "-" else "-"}inf"',
                            part=f"`{self.of(parent)}`")
            yield self.expression("wrong-number", parent, "0.0", part=f"`{self.of(parent)}`")
        for one in new:
            yield self.number(node, str(one))

    def number(self, node, new: str) -> Edit:
        """Put another number in place of a constant."""
        parent = self.parents.get(node)
        axis = isinstance(parent, ast.keyword) and parent.arg in ("axis", "dim")
        return self.expression("wrong-axes" if axis else "wrong-number", node, new, part=(
            f"`{self.of(node)}`"), said=f"`{self.of(parent)}` is the wrong axis." * axis)

    def functions(self, node) -> Iterator[Edit]:
        if not isinstance(node, ast.Call):
            return
        front, _, last = self.of(node.func).rpartition(".")
        for new in FUNCTIONS.get(last, "").split():
            yield self.edit("wrong-function", node.func, f"{front}.{new}" if front else new, node,
                            part=f"`{last}`")
        if last in FIXED:
            return
        if front and not re.fullmatch(r"(tl|triton|torch|math)(\.math)?", front):
            cast = last in ("to", "type", "float", "half", "bfloat16", "double")
            id = "wrong-dtype" if cast else "wrong-function"
            said = f"`{front}` must not be transposed here." * (last in ("transpose", "t"))
            for key in ((), ("casts", *map(self.of, node.args)))[:1 + cast]:  # or all of them
                yield self.edit(id, node, front, node, -RANKS[id], key, f"`{last}`", said)  # remove
            if isinstance(node.func.value, ast.Call) and last == "to":  # cast there and back
                yield self.expression(id, node, front.rpartition(".to(")[0], node)
        elif len(node.args) == 1:
            turned = last == "trans"
            yield self.expression("wrong-axes" if turned else "wrong-function", node,
                                  self.of(node.args[0]), node, part=f"`{last}`", said=(
                                      f"`{self.of(node.args[0])}` must not be transposed here."
                                      * turned))
        elif last in ("maximum", "minimum"):
            for one in node.args:
                yield self.expression("one-too-many", node, self.of(one), node, 0.5,
                                      f"`{self.of(node.func)}`")
        elif last == "cdiv":
            yield self.rounded("wrong-function", node, " // ".join(map(self.inner, node.args)),
                               self.of(node.func), ("up", "down"))

    def axes(self, node) -> Iterator[Edit]:
        if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
            yield self.expression("wrong-axes", node, self.of(node.value), said=(
                f"`{self.of(node.value)}` must not be transposed here."))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            other = {":,None": "None, :", "None,:": ":, None", "None": ":, None",
                     "...,None": "..., None, :"}.get(self.of(node.slice).replace(" ", ""))
            if other:
                own, its = ("column", "row") if other[0] == "N" else ("row", "column")
                said = f"`{self.of(node)}` is a {own}, but a {its} is needed." if self.kernel else \
                    MISPLACED.format(self.of(node))
                for one in (other, *["..., None"] * (not self.kernel)):
                    yield self.edit("wrong-axes", node, f"{self.inner(node.value)}[{one}]",
                                    said=said)
                if not self.kernel:
                    said = f"`[{self.of(node.slice)}]` should not be there."
                yield self.edit("wrong-axes", node, self.inner(node.value),  # a row without it, too
                                said=said * (not self.kernel or own == "column"))
            if isinstance(node.slice, ast.Tuple):
                yield from self.indices(node, [self.of(one) for one in node.slice.elts])
        parent = self.parents.get(node)
        if not self.is_operand(node) or isinstance(node, ast.Constant):
            return
        own, its = self.inner(node), self.kind(node)
        if (isinstance(parent, ast.Call) and self.of(parent.func).endswith(("dot", "matmul"))
                or isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult)
                ) and not re.search(r"^tl\.trans\(|transpose\([^()]*\)$|\.m?T$", self.of(node)):
            turned = f"tl.trans({self.of(node)})" if self.kernel else f"{own}.mT"
            yield self.expression("wrong-axes", node, turned, said=(
                f"`{self.of(node)}` must be transposed here."))
        if (its[:1] in ("1", "") or not self.kernel and its.endswith(" f")) and isinstance(
                parent, ast.BinOp | ast.Compare):
            for index in ("[:, None]", "[None, :]") if self.kernel else ("[..., None]",):
                yield self.expression("wrong-axes", node, own + index, late=its == "", said=(
                    f"{self.this(node)} needs a new axis here."))
        if its in ("2 f", "1 f", "") and isinstance(parent, ast.BinOp | ast.Call):
            cast = ".to(tl.float32)" if self.kernel else ".float()"
            yield self.expression("wrong-dtype", node, own + cast)

    def indices(self, node: ast.Subscript, own: list[str]) -> Iterator[Edit]:
        """A new axis in another place; a slice that is missing."""
        def edit(id: str, new: list[str], part: str = "") -> Edit:
            said = MISPLACED.format(self.of(node)) * (id == "wrong-axes")
            return self.edit(id, node, f"{self.inner(node.value)}[{', '.join(new)}]", part=part,
                             said=said)

        for i, one in enumerate(own):
            others = own[:i] + own[i + 1:]
            for j in range(len(own)) if one == "None" else ():
                yield edit("wrong-axes", [*others[:j], one, *others[j:]])
            if one == "None":
                yield edit("wrong-axes", [*others, ":", one])
            for name, kind in self.kinds.items():
                if kind == "slice" and name not in own:
                    yield edit("one-missing", [*own[:i], name, *own[i:]], f"The slice {name}")

    def names(self, node) -> Iterator[Edit]:
        if isinstance(node, ast.Subscript | ast.Call | ast.BinOp) \
                and self.kind(node) in ("number", "1 i"):
            for other, kind in self.kinds.items():  # in place of x.shape[1], tl.arange(0, ROWS)
                if kind == self.kind(node):
                    yield self.expression("wrong-number", node, other, late=0.3,
                                          part=f"`{self.of(node)}`")
        if not isinstance(node, ast.Name) or node.id in MODULES:
            return
        parent = self.parents.get(node)
        if re.match("[3-9] f", self.kinds.get(node.id, "")) and not isinstance(
                node.ctx, ast.Store) and not isinstance(parent, ast.Subscript):
            for name in [name for name, kind in self.kinds.items() if kind == "slice"]:
                yield self.edit("one-missing", node, f"{node.id}[:, :, {name}]",
                                part=f"The slice {name}")
        if isinstance(parent, ast.If | ast.IfExp | ast.BoolOp):
            return  # any other name would be true, or false, throughout
        if isinstance(node.ctx, ast.Store):
            for leaf in self.leaves:
                if leaf not in self.bound:
                    yield self.edit("wrong-name", node, leaf, part=f"`{node.id}`")
        elif not (isinstance(parent, ast.Call) and parent.func is node):
            its = self.kinds.get(node.id, "")
            if its == "number":
                yield self.edit("wrong-number", node, "0", part=f"`{node.id}`")
            shaped = isinstance(parent, ast.Call) and (  # or a tensor that is handed to a kernel
                self.of(parent.func) == "torch.empty_like" or isinstance(
                    parent.func, ast.Subscript))
            for other, kind in self.kinds.items():
                if other != node.id and (kind == its or shaped and kind.endswith(" f")):
                    alike = other[:1] == node.id[:1] or other[1:] == node.id[1:] \
                        or other.partition("_")[2] == node.id.partition("_")[2] != ""
                    yield self.edit("wrong-name", node, other, late=0 if alike else 0.8,
                                    key=self.handed(node, other), part=f"`{node.id}`")

    def handed(self, node, new: str) -> tuple:
        """The key of a name that calls of one function have in the same argument; () elsewhere."""
        inner = node
        while not isinstance(inner, ast.stmt):
            inner, call = self.parents[inner], inner
            if isinstance(inner, ast.Call) and call in inner.args:
                return ("argument", self.of(inner.func), inner.args.index(call), self.of(call),
                        self.span(node)[0] - self.span(call)[0], new)
        return ()

    def arguments(self, node) -> Iterator[Edit]:
        if not isinstance(node, ast.Call):
            return
        own = [self.of(one) for one in node.args]
        named = [self.of(one) for one in node.keywords]
        function, names = self.of(node.func), {one.arg for one in node.keywords}

        def edit(id: str, arguments: list[str], key=(), late: float = 0, part="", said="") -> Edit:
            return self.edit(id, node, f"{function}({', '.join(arguments)})", node, late, key,
                             part, said)

        for i, j in itertools.combinations(range(len(own)), 2):
            if len(own) < 5 or j == i + 1:
                new = own.copy()
                new[i], new[j] = own[j], own[i]
                yield edit("arguments-exchanged", new + named, ("exchanged", function, i, j),
                           2 * (function == "range"))  # which makes it empty, for another's keys
        for i, one in enumerate(node.keywords):
            yield edit("wrong-argument", own + named[:i] + named[i + 1:], (), 1,
                       said=f"{one.arg}= should not be there.")
        if function == "range" and len(own) < 3:
            for name, kind in self.kinds.items():
                if kind == "number" and re.search("BLOCK|TILE", name):
                    yield edit("wrong-argument", ["0"] * (len(own) < 2) + own + [name], part="step")
        last = function.rpartition(".")[2]
        if last == "dot" and len(own) == 3:
            yield edit("one-too-many", own[:2] + named, late=0.5, part=f"`{own[2]}`")
        if last in ("load", "store") and self.kernel:
            fill = [", other=0.0"] * (last == "load" and "other" not in names)
            if "mask" in names and fill:
                yield edit("wrong-argument", own + named + ["other=0.0"], part="other=")
            for late, mask in self.masks() if "mask" not in names else ():
                yield edit("wrong-argument", own + named + [f"mask={mask}"] + [
                    "other=0.0"] * bool(fill), late=late, part="mask=")
            for value, part in (made for one in node.keywords if one.arg == "mask"
                                for made in self.made_of(one.value)):
                compared = set(COMPARED.findall(self.of(value)))  # there a bound may be wrong
                for late, mask in self.masks():
                    if not compared.intersection(COMPARED.findall(mask)):
                        yield self.edit(
                            "wrong-argument", value, f"({self.of(value)}) & ({mask})",
                            node if part == "mask=" else value, late + 0.5,
                            said="The mask lacks a condition." if part == "mask=" else
                            f"A condition is missing in {part}.")
        if last in ("sum", "max", "min") and self.kernel and "axis" not in names and len(own) == 1:
            for axis in (1, 0):
                yield edit("wrong-argument", [*own, *named, f"axis={axis}"], part="axis=")
        if last in ("sum", "max", "amax") and not self.kernel and "keepdim" not in names:
            yield edit("wrong-argument", [*own, *named, "keepdim=True"], part="keepdim=")
        if last in ("sum", "amax") and not self.kernel and "dim" not in names:
            yield edit("one-missing", [*own, *named, "dim=-1"], part="dim=")

    def made_of(self, mask: ast.expr) -> list[tuple[ast.expr, str]]:
        """The expressions of a mask, here or where its name is assigned, and what to call them."""
        made = [node.value for node in self.nodes if isinstance(node, ast.Assign)
                and self.of(node.targets[0]) == self.of(mask)]
        return [(value, f"`{self.of(mask)}`") for value in made] or [(mask, "mask=")]

    def masks(self) -> Iterator[tuple[float, str]]:
        """Rows or columns that exist, and how late they are tried."""
        for name, kind in self.kinds.items():
            if kind.endswith(" b"):
                yield 0, name
        for one, other in itertools.permutations(
                [name for name, kind in self.kinds.items() if kind == "1 b"], 2):
            yield 0.3, f"{one}[:, None] & {other}[None, :]"
        ends = [end for end in ENDS if self.kinds.get(end) == "number"]
        starts = [name for name, kind in self.kinds.items() if kind == "number"
                  and name.startswith("start")]
        for name, kind in self.kinds.items():
            if kind in ("1 i", "2 i"):
                for end, form in itertools.product(ends, ("",) if kind[0] == "2" else (
                        "", "[:, None]", "[None, :]")):
                    yield 0.5, f"{name}{form} < {end}"
                    for start in starts if kind[0] == "2" else ():
                        yield 0.5, f"{start} + {name} < {end}"
        rows, columns = ([f"({name}{form} < {end})" for name, kind in self.kinds.items()
                          if kind == its for end in ends]
                         for its, form in (("1 i", "[:, None]"), ("2 i", "")))
        for one, other in itertools.product(rows, columns):
            yield 0.9, f"{one} & {other}"

    def terms(self, node) -> Iterator[Edit]:
        """A factor, or a term, that may be missing."""
        if not self.is_operand(node) or isinstance(node, ast.Constant) or isinstance(
                getattr(node, "op", None), ast.BitAnd | ast.BitOr):
            return
        own, its = self.inner(node), self.kind(node)
        if its in ("number", "1 i", "2 i", ""):
            if its != "number":
                yield self.expression("one-missing", node, f"-{own}", part="A minus sign")
            late = 0.1 + 0.05 * self.read_later(node)
            for sign in "+-":
                yield self.expression("one-missing", node, f"{own} {sign} 1", late=late,
                                      part=f"`{sign} 1`")
        if (isinstance(node, ast.BinOp) or isinstance(self.parents.get(node), ast.Assign)) \
                and its in ("number", ""):
            whole = self.of(node)
            bounds = [(f"tl.maximum({whole}, 0)", "must not be below 0")] + [
                (new, "must be rounded to whole tiles") for size in self.kinds
                if self.kinds[size] == "number" and "BLOCK" in size
                for new in (f"{own} // {size} * {size}", f"tl.cdiv({whole}, {size}) * {size}")]
            bounds += [(f"tl.{function}({whole}, {name})", f"must not {verb} {name}")
                       for name, kind in self.kinds.items()
                       for function, verb in (("minimum", "exceed"), ("maximum", "be below"))
                       if kind == "number" and re.search(SIGNS[2][0] + "|inner|^N", name)]
            for new, part in bounds:
                yield self.expression("bound-missing", node, new, part=part)
        for name, kind in self.kinds.items():
            if kind == "number":
                signs, late = next(rule for words, *rule in SIGNS if re.search(words, name))
                forms, factor = ("",), late == 0
                if its and factor != (
                        its.endswith(" f") or bool(re.search(SIGNS[0][0] + "|sink$", own))):
                    continue
            elif kind in ("1 f", "2 f") and its not in ("number", "1 i", "2 i", "pointers"):
                forms = ("", self.across) if kind == "1 f" else ("",)
                signs, late = ("*", 0) if "alpha" in name else ("*-/+", 0.2 if kind == "1 f" else 1)
            else:
                continue
            for sign, form in itertools.product(signs, forms):
                sign = "//" if sign == "/" and kind == "number" and its != "" else sign
                yield self.expression("one-missing", node, f"{own} {sign} {name}{form}", late=late,
                                      part=name)

        powers = ("tl.math.exp2", "tl.exp", "tl.math.log2", "tl.log") if self.kernel else (
            "torch.exp", "torch.log")
        for function in powers if isinstance(self.parents.get(node), ast.Assign) else ():
            yield self.expression("one-missing", node, f"{function}({self.of(node)})", late=-1,
                                  part=f"`{function.rpartition('.')[2]}`")

    def reduced(self, node) -> Iterator[Edit]:
        """A sum, or a maximum, that is missing."""
        if self.is_operand(node) or isinstance(node, ast.BinOp) and isinstance(
                self.parents.get(node), ast.UnaryOp):
            text = self.of(node)
            forms = [f"tl.{{}}({text}, axis={axis})" for axis in (1, 0)] if self.kernel else [
                f"({text}).{{}}(dim=-1)"]
            for form, (function, word) in itertools.product(
                    forms, (("sum", "sum"), ("max" if self.kernel else "amax", "maximum"))):
                yield self.expression("one-missing", node, form.format(function), late=-1.5, said=(
                    f"{self.this(node)} has one axis too many: its {word} is missing."))

    def this(self, node) -> str:
        """What to call an expression in a sentence after it, or what is around it, was quoted."""
        return "This" if self.around(node) is node else f"`{self.of(node)}`"

    # ----------------------------------------------------------------- statements
    def statements(self, body: list[ast.stmt]) -> Iterator[Edit]:
        for number, node in enumerate(body):
            yield self.edit("line-too-many", node, "pass", node)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                own = [self.of(one) for one in node.targets[0].elts]
                for i, j in itertools.combinations(range(len(own)), 2):
                    new = own.copy()
                    new[i], new[j] = own[j], own[i]
                    yield self.edit("names-exchanged", node.targets[0], ", ".join(new), node, 0,
                                    ("targets", *own, i, j))
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = self.of(node.targets[0]), self.of(node.value)
                yield self.edit("wrong-assignment", node, f"{target} += {value}", node)
                if self.kernel and target in self.leaves and self.kind(node.value) == "number":
                    for size, times in itertools.product(
                            [name for name in self.kinds if "BLOCK" in name], (" * {0}", "")):
                        yield self.edit(
                            "one-missing", node, (f"{target} = {self.inner(node.value)}{times} + "
                                                  "tl.arange(0, {0})").format(size), node, -2,
                            said=f"{target} is one number here, not a tile: tl.arange is missing.")
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and self.leaves:
                given = f"{', '.join(self.leaves)} ="
                yield self.edit("one-missing", node, f"{given} {self.of(node)}", node, -2,
                                part=f"`{given}`")  # early: nothing else fixes it
            if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
                old, target = OPERATORS[type(node.op)], self.of(node.target)
                for new in {"+": ("", "-"), "-": ("+",)}.get(old, ("",)):
                    yield self.edit("wrong-operator" if new else "wrong-assignment", node,
                                    f"{target} {new}= {self.of(node.value)}", node,
                                    part=f"`{old}=`" * bool(new))
            if not isinstance(node, ast.For | ast.If | ast.While):
                yield from self.exchanged(node)
            for other in body[number + 1:]:
                if not any(isinstance(one, ast.For | ast.If) for one in (node, other)):
                    (begin, first), (second, end) = self.span(node), self.span(other)
                    between = self.raw[first:second].decode()
                    tier = RANKS["wrong-order"] + self.late(node)
                    yield Edit("wrong-order", node.lineno, tier, begin, end, self.of(other)
                               + between + self.of(node), node, (begin, end), "", tier)

    def exchanged(self, statement: ast.stmt) -> Iterator[Edit]:
        """Exchange two names everywhere in a statement, or its axes."""
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)
                 and node.id in self.kinds | dict.fromkeys(self.bound)]
        places = {}
        for node in names:
            places.setdefault((node.id, type(node.ctx)), []).append(node)
        for (one, how), (other, its) in itertools.combinations(places, 2):
            if how is its and self.kinds.get(one, "") == self.kinds.get(other, ""):
                yield self.rewritten("names-exchanged", statement, [
                    (node, new) for name, new in ((one, other), (other, one))
                    for node in places[name, how]], (one, other, how))
        for (one, how), nodes in places.items():
            alike = self.kinds if len(nodes) > 1 and self.kinds.get(one) == "number" else ()
            for other in [other for other in alike if self.kinds[other] == "number"]:
                yield self.rewritten("wrong-name", statement, [(node, other) for node in nodes],
                                     (one, other, how), f"`{one}`", one[:1] != other[:1])
        prefixes = {name.partition("_")[0] for name in self.kinds if "_" in name}
        for node, (one, other) in itertools.product(
                [node for node in ast.walk(statement) if isinstance(node, ast.Call)],
                itertools.permutations(sorted(prefixes), 2)):  # k_ptr, k_strides: v_ptr, v_strides
            parts = [(name, other + name.id.removeprefix(one)) for name in ast.walk(node)
                     if isinstance(name, ast.Name) and name.id.startswith(one + "_")]
            if len(parts) > 1 and all(new in self.kinds for _, new in parts):
                yield self.rewritten("wrong-name", node, parts, (node, one, other))
        turned = {"[:, None]": "[None, :]", "[None, :]": "[:, None]"}
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        for part in (statement, *(one for call in calls for one in (
                *call.args, *(word.value for word in call.keywords)))):
            axes = [(node, self.inner(node.value) + turned[index]) for node in ast.walk(part)
                    if isinstance(node, ast.Subscript) and (
                        index := f"[{self.of(node.slice)}]") in turned]
            if len(axes) > 1:
                yield self.rewritten("wrong-axes", part, axes, (part,),
                                     said="[:, None] and [None, :] are swapped.")

    def rewritten(self, id: str, statement, parts: list[tuple[ast.AST, str]], key, part: str = "",
                  late: float = 0, said: str = "") -> Edit:
        """Replace several parts of a statement."""
        (start, end), text = self.span(statement), self.raw
        for node, new in sorted(parts, key=lambda part: -self.span(part[0])[0]):
            begin, stop = self.span(node)
            text, end = text[:begin] + new.encode() + text[stop:], end + len(new) - (stop - begin)
        return self.edit(id, statement, text[start:end].decode(), statement, late, (id, *key),
                         part, said)
