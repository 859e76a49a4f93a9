"""Models of the rules by which libCacheSim differs from the papers, to see that they explain a figure.

Each takes the requests, pairs of an object and its size, and the size of the memory, and returns the
misses. They share no code with either program.
"""

import math
from collections import OrderedDict

from xxhash import xxh64_intdigest

# The seeds of the two hashes that give the places of a key in the sketch.
SEEDS = (0x12345678, 0x12344321)


class Queue(OrderedDict):
    """Objects with their sizes, the oldest first."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def push(self, key, size):
        self[key] = size
        self.bytes += size

    def take(self, key):
        size = self.pop(key, None)
        self.bytes -= size or 0
        return size

    def oldest(self):
        return next(iter(self))

    def shift(self):
        key, size = self.popitem(last=False)
        self.bytes -= size
        return key, size


def s3_fifo(requests, capacity):
    """The main queue takes new objects, too, while the small one is full and nothing was evicted."""
    small, main, ghost, reads = Queue(), Queue(), Queue(), {}
    small_max, misses, has_evicted = int(capacity * 0.1), 0, False
    main_max, ghost_max = capacity - small_max, int(capacity * 0.9)
    for key, size in requests:
        if key in small or key in main:
            reads[key] += 1
            continue
        misses += 1
        came_back = ghost.take(key) is not None
        if size > small_max:
            continue
        while small.bytes + main.bytes + size > capacity:
            has_evicted = True
            if main.bytes > main_max or not small:
                while main:
                    old, bytes_ = main.shift()
                    if reads[old] == 0:
                        break
                    reads[old] = min(reads[old], 3) - 1
                    main.push(old, bytes_)
                continue
            while small:
                old, bytes_ = small.shift()
                if reads[old] < 2:
                    ghost.push(old, bytes_)
                    while ghost.bytes > ghost_max:
                        ghost.shift()
                    break
                reads[old] = 0
                main.push(old, bytes_)
        reads[key] = 0
        fills_main = not has_evicted and small.bytes >= small_max
        (main if came_back or fills_main else small).push(key, size)
    return misses


def arc(requests, capacity):
    """A hit among evicted objects moves the target by a ratio, as if every object had one byte, and an
    eviction forgets at most one evicted object, whatever their sizes."""
    once, often, once_gone, often_gone = Queue(), Queue(), Queue(), Queue()
    target, misses = 0.0, 0

    def replace(is_often):
        is_once = once.bytes > target or (is_often and once.bytes == target)
        if (once and is_once) or not often:
            once_gone.push(*once.shift())
        else:
            often_gone.push(*often.shift())

    for key, size in requests:
        queue = once if key in once else often
        if key in queue:
            often.push(key, queue.take(key))
            continue
        misses += 1
        if size > capacity:
            continue
        is_often, came_back = key in often_gone, True
        if key in once_gone:
            target = min(target + max(often_gone.bytes / once_gone.bytes, 1), capacity)
            once_gone.take(key)
        elif is_often:
            target = max(target - max(once_gone.bytes / often_gone.bytes, 1), 0)
            often_gone.take(key)
        else:
            came_back = False
        while once.bytes + often.bytes + size > capacity:
            if came_back:
                replace(is_often)
            elif once.bytes + once_gone.bytes + size > capacity:
                if not once_gone:
                    once.shift()
                    continue
                once_gone.shift()
                replace(False)
            else:
                queues = [once, often, once_gone, often_gone]
                if sum(queue.bytes for queue in queues) >= 2 * capacity and often_gone:
                    often_gone.shift()
                replace(False)
        (often if came_back else once).push(key, size)
    return misses


def w_tinylfu(requests, capacity):
    """The window grows until the memory is full, and drains into both segments of the main memory.

    Both segments are rounded down, so together they may be smaller than the main memory, which is filled
    nevertheless. If the lower segment is over its size when a hit moves an object down into it, its
    oldest object is evicted, and the next object that leaves the window takes that place without a
    comparison.

    The sketch has room for as many objects as the main memory has bytes, notes no hits in the window,
    but objects that leave it, and is halved after 32 times as many hits as it has room for.
    """
    window, lower, upper = Queue(), Queue(), Queue()
    window_max = int(capacity * 0.01)
    main_max = capacity - window_max
    lower_max, upper_max = int(1 / 5 * main_max), int(4 / 5 * main_max)
    # A Bloom filter's counters for a false positive in a thousand.
    counters_max = min(math.ceil(-math.log(0.001) / 0.480453013918201 * main_max), 2**31 - 1)
    counters, numbers, places, misses, hits = [], {}, {}, 0, 0

    def places_of(key):
        """Numbers of the key's counters. Only those that some key has are there."""
        found = places.get(key)
        if found is None:
            first, step = (xxh64_intdigest(key.to_bytes(8, "little"), seed) for seed in SEEDS)
            steps = range(10)
            found = [(first + at * step & 0xFFFFFFFF) % counters_max for at in steps]
            found = places[key] = [numbers.setdefault(place, len(numbers)) for place in found]
            counters.extend([0] * (len(numbers) - len(counters)))
        return found

    def note(key):
        for place in places_of(key):
            counters[place] += 1

    def count(key):
        return min([counters[place] for place in places_of(key)])

    def victims():
        return lower or upper

    def enter(key, size):
        if lower.bytes + size <= lower_max:
            lower.push(key, size)
        elif upper.bytes + size <= upper_max:
            upper.push(key, size)
        else:
            while lower.bytes + upper.bytes + size > main_max:
                victims().shift()
            lower.push(key, size)

    for key, size in requests:
        if key in window:
            window.move_to_end(key)
            continue
        if key in lower or key in upper:
            if key in upper:
                upper.move_to_end(key)
            else:
                upper.push(key, lower.take(key))
                while upper.bytes > upper_max:
                    lower.push(*upper.shift())
                    while lower.bytes > lower_max:
                        lower.shift()
            note(key)
            hits += 1
            if hits >= 32 * main_max:
                hits = 0
                counters = [count_ // 2 for count_ in counters]
            continue
        misses += 1
        if size > min(window_max, lower_max):
            continue
        while window.bytes + lower.bytes + upper.bytes + size > capacity:
            is_evicted = False
            while not is_evicted:
                if not window:
                    victims().shift()
                    break
                candidate, bytes_ = window.shift()
                if lower.bytes + upper.bytes + bytes_ <= main_max:
                    enter(candidate, bytes_)
                elif count(candidate) > count(victims().oldest()):
                    victims().shift()
                    enter(candidate, bytes_)
                    is_evicted = True
                else:
                    is_evicted = True
                note(candidate)
        window.push(key, size)
        note(key)
    return misses


RULES = {"s3-fifo": s3_fifo, "arc": arc, "w-tinylfu": w_tinylfu}
