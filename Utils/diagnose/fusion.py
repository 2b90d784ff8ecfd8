"""Fusion: the operations of a compiled graph that become one kernel.

The rules are Inductor's, simplified. A matrix product, attention or the like is a kernel of its
own. What is computed element by element, or reduced, joins the kernel that makes or reads the same
numbers in the same order, unless something between the two needs a kernel of its own.
"""

from Utils.diagnose.operations import COMPILED, Operation

MOST_READS = 4  # of memory, beyond which what several kernels need is computed once and written
LONGEST_ROW = 4096  # numbers that one block keeps in registers; of a longer row each pass reads


class Group:
    """Nodes of a graph that are one kernel."""

    def __init__(self, node, domain, columns):
        self.nodes, self.domain, self.columns = [node], domain, columns
        self.leaves, self.stage, self.row = {}, {}, 1


def groups(nodes, rules):
    """Return pairs of a node and the Operation of the kernel that ends with it, in order. The
    Operation is None where the node is its own kernel. nodes: of the graph. rules: of `recorded`.
    """
    is_view, is_reduction, tensor = rules.is_view, rules.is_reduction, rules.tensor
    fused = set(rules.fused)
    found, group_of, readers, ancestors, operations = [], {}, {}, {}, []
    positions = {node: position for position, node in enumerate(nodes)}
    for node in nodes:
        bits = 0
        for parent in node.all_input_nodes:
            if parent in positions:
                bits |= ancestors[parent] | 1 << positions[parent]
        ancestors[node] = bits
        if is_view(node) or node.op != "call_function":
            continue
        leaves = _leaves(node, fused, is_view)
        if node in fused:
            if len(node.users) < 2 or len(leaves) <= MOST_READS:
                continue
            fused.remove(node)
        if not rules.is_kernel(node):
            found.append(node)
            continue
        group = _joined(node, leaves, group_of, readers, ancestors, positions, is_reduction, tensor)
        if group is None:
            group = Group(node, *_domain(node, is_reduction, tensor))
            found.append(group)
        else:
            group.nodes.append(node)
        group_of[node] = group
        for leaf in leaves:
            readers.setdefault(leaf, []).append(group)
        group.leaves |= {leaf: tensor(leaf) for leaf in leaves if tensor(leaf)}
        inside = [group.stage[leaf] for leaf in leaves if leaf in group.stage]
        group.stage[node] = max(inside, default=0) + bool(is_reduction(node))
        if is_reduction(node) and not group.columns:
            group.row = max(group.row, group.domain // max(1, tensor(node).numel))
    for one in found:
        if isinstance(one, Group):
            operations.append((one.nodes[-1], _operation(one, fused, is_view, tensor)))
        else:
            operations.append((one, None))
    return operations


def _leaves(node, fused, is_view):
    """Return what is read from memory: results and inputs that no fused operation stands for."""
    leaves, waiting, seen = [], list(node.all_input_nodes), set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in fused or is_view(one):
            waiting.extend(one.all_input_nodes)
        else:
            leaves.append(one)
    return leaves


def _domain(node, is_reduction, tensor):
    """Return (numbers that its loops run over, whether it sums columns)."""
    if not is_reduction(node):
        return tensor(node).numel, False
    source = tensor(node.all_input_nodes[0])
    dims = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], list | tuple) else [-1]
    last = len(source.shape) - 1
    return source.numel, not any(dim in (-1, last) for dim in dims)


def _joined(node, leaves, group_of, readers, ancestors, positions, is_reduction, tensor):
    """Return the group that a node joins, or None."""
    domain, columns = _domain(node, is_reduction, tensor)
    near = {id(group): group for leaf in leaves for group in readers.get(leaf, ())}
    near |= {id(group_of[leaf]): group_of[leaf] for leaf in leaves if leaf in group_of}
    for group in near.values():
        if group.domain != domain or group.columns != columns:
            continue
        members = sum(1 << positions[one] for one in group.nodes)
        outside = [leaf for leaf in leaves if leaf not in group.nodes and leaf in positions]
        if not any(ancestors[leaf] & members for leaf in outside):
            return group
    return None


def _operation(group, fused, is_view, tensor):
    members = set(group.nodes)
    reads = tuple(t for leaf, t in group.leaves.items() if leaf not in members)
    outside = [one for one in group.nodes if _read_outside(one, members, fused, is_view)]
    passes = 1
    if group.row > LONGEST_ROW:
        stages = max(group.stage.values())
        last = any(tensor(node) and tensor(node).numel == group.domain for node in group.nodes)
        passes = max(1, stages + last)
    name = "reduction" if group.columns or group.row > 1 else "pointwise"
    writes = tuple(tensor(node) for node in outside if tensor(node))
    return Operation(name, reads, writes, host=COMPILED, passes=passes)


def _read_outside(node, members, fused, is_view):
    waiting, seen = list(node.users), set()
    while waiting:
        user = waiting.pop()
        if user in seen or user in members:
            continue
        seen.add(user)
        if user in fused or is_view(user):
            if user.users:
                waiting.extend(user.users)
            continue
        return True
    return False
