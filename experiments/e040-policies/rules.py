"""Models of the rules by which libCacheSim differs from the papers, to see that they explain a figure.

Each takes the requests, pairs of an object and its size, and the size of the memory, and returns the
misses. They share no code with either program.
"""

import math
import random
from collections import OrderedDict


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

    The sketch has room for as many objects as the main memory has bytes, notes no hits in the window,
    but objects that leave it, and is halved after 32 times as many hits as it has room for.
    """
    window, segments = Queue(), [Queue(), Queue()]
    main_max = capacity - int(capacity * 0.01)
    segment_max = [main_max // 5, main_max // 5 * 4]
    counters_max = min(math.ceil(14.378 * main_max), 2**31 - 1)
    draw, counters, places, misses = random.Random(3), {}, {}, 0
    hits = 0

    def places_of(key):
        if key not in places:
            first, step = draw.getrandbits(32), draw.getrandbits(32)
            steps = range(10)
            places[key] = [(first + at * step & 0xFFFFFFFF) % counters_max for at in steps]
        return places[key]

    def note(key):
        for place in places_of(key):
            counters[place] = counters.get(place, 0) + 1

    def count(key):
        return min(counters.get(place, 0) for place in places_of(key))

    def enter(key, size):
        fitting = [at for at in (0, 1) if segments[at].bytes + size <= segment_max[at]]
        if not fitting:
            while segments[0].bytes + segments[1].bytes + size > main_max:
                (segments[0] or segments[1]).shift()
        segments[fitting[0] if fitting else 0].push(key, size)

    for key, size in requests:
        if key in window:
            window.move_to_end(key)
            continue
        if key in segments[0] or key in segments[1]:
            segment = segments[0] if key in segments[0] else segments[1]
            segments[1].push(key, segment.take(key))
            while segments[1].bytes > segment_max[1]:
                segments[0].push(*segments[1].shift())
            note(key)
            hits += 1
            if hits >= 32 * main_max:
                hits = 0
                counters = {place: count_ // 2 for place, count_ in counters.items()}
            continue
        misses += 1
        if size > int(capacity * 0.01):
            continue
        while window.bytes + segments[0].bytes + segments[1].bytes + size > capacity:
            is_evicted = False
            while not is_evicted:
                if not window:
                    (segments[0] or segments[1]).shift()
                    break
                candidate = window.oldest()
                bytes_ = window[candidate]
                if segments[0].bytes + segments[1].bytes + bytes_ <= main_max:
                    window.take(candidate)
                    enter(candidate, bytes_)
                elif count(candidate) > count((segments[0] or segments[1]).oldest()):
                    (segments[0] or segments[1]).shift()
                    window.take(candidate)
                    enter(candidate, bytes_)
                    is_evicted = True
                else:
                    window.take(candidate)
                    is_evicted = True
                note(candidate)
        window.push(key, size)
        note(key)
    return misses


RULES = {"s3-fifo": s3_fifo, "arc": arc, "w-tinylfu": w_tinylfu}
