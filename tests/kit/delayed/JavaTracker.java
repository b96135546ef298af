package org.apache.pulsar.broker.delayed.bucket;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.util.Timeout;
import io.netty.util.Timer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;
import org.apache.pulsar.broker.service.persistent.PersistentDispatcherMultipleConsumers;
import org.roaringbitmap.RoaringBitmap;

/**
 * The broker's BucketDelayedDeliveryTracker by itself: storage in memory, of the bytes that the broker would store, a
 * cursor that is a map of properties, a clock that is set, a timer that never fires. It is in the tracker's package to
 * see its buckets. Commands come a line each on standard input, and each is answered by a line on standard output.
 */
public class JavaTracker {
    static final String TOPIC = "persistent://public/default/t";
    static final String CURSOR = "sub";

    final Map<String, String> properties = new TreeMap<>();
    final Map<Long, List<byte[]>> stored = new TreeMap<>();
    long nextId = 1000;
    long now;
    long tick;
    boolean strict;
    long least;
    long step;
    int most;
    int maxBuckets;
    BucketDelayedDeliveryTracker tracker;

    static class Dispatcher extends PersistentDispatcherMultipleConsumers {
        ManagedCursor stub;

        Dispatcher() {
            super(null, null, null);
        }

        @Override
        public String getName() {
            return TOPIC + " / " + CURSOR;
        }

        @Override
        public ManagedCursor getCursor() {
            return stub;
        }
    }

    final Clock clock = new Clock() {
        @Override
        public ZoneId getZone() {
            return ZoneId.of("UTC");
        }

        @Override
        public Clock withZone(ZoneId zone) {
            return this;
        }

        @Override
        public Instant instant() {
            return Instant.ofEpochMilli(now);
        }

        @Override
        public long millis() {
            return now;
        }
    };

    final BucketSnapshotStorage storage = new BucketSnapshotStorage() {
        @Override
        public CompletableFuture<Long> createBucketSnapshot(SnapshotMetadata metadata, List<SnapshotSegment> segments,
                                                            String key, String topic, String cursor) {
            List<byte[]> entries = new ArrayList<>();
            entries.add(metadata.toByteArray());
            for (SnapshotSegment segment : segments) {
                entries.add(segment.toByteArray());
            }
            stored.put(nextId, entries);
            return CompletableFuture.completedFuture(nextId++);
        }

        @Override
        public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long id) {
            try {
                return CompletableFuture.completedFuture(SnapshotMetadata.parseFrom(stored.get(id).get(0)));
            } catch (Exception e) {
                return CompletableFuture.failedFuture(e);
            }
        }

        @Override
        public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(long id, long first, long last) {
            List<SnapshotSegment> found = new ArrayList<>();
            for (long i = first; i <= last; i++) {
                found.add(parsed(stored.get(id).get((int) i)));
            }
            return CompletableFuture.completedFuture(found);
        }

        @Override
        public CompletableFuture<Long> getBucketSnapshotLength(long id) {
            return CompletableFuture.completedFuture(stored.get(id).stream().mapToLong(e -> e.length).sum());
        }

        @Override
        public CompletableFuture<Void> deleteBucketSnapshot(long id) {
            stored.remove(id);
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void start() {
        }

        @Override
        public void close() {
        }
    };

    static SnapshotSegment parsed(byte[] entry) {
        ByteBuf buffer = Unpooled.wrappedBuffer(entry);
        SnapshotSegment segment = new SnapshotSegment();
        segment.parseFrom(buffer, entry.length);
        return segment;
    }

    void load() throws Exception {
        Field unsafeField = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        unsafeField.setAccessible(true);
        Dispatcher dispatcher =
                (Dispatcher) ((sun.misc.Unsafe) unsafeField.get(null)).allocateInstance(Dispatcher.class);
        ClassLoader loader = JavaTracker.class.getClassLoader();
        dispatcher.stub = (ManagedCursor) Proxy.newProxyInstance(loader, new Class<?>[] {ManagedCursor.class},
                (proxy, method, args) -> switch (method.getName()) {
                    case "getName" -> CURSOR;
                    case "getCursorProperties" -> properties;
                    case "putCursorProperty" -> {
                        properties.put((String) args[0], (String) args[1]);
                        yield CompletableFuture.completedFuture(null);
                    }
                    case "removeCursorProperty" -> {
                        properties.remove((String) args[0]);
                        yield CompletableFuture.completedFuture(null);
                    }
                    case "hashCode" -> 1;
                    case "equals" -> proxy == args[0];
                    default -> throw new UnsupportedOperationException(method.getName());
                });
        Timeout never = (Timeout) Proxy.newProxyInstance(loader, new Class<?>[] {Timeout.class},
                (proxy, method, args) -> method.getReturnType() == boolean.class ? (Object) true : null);
        Timer timer = (Timer) Proxy.newProxyInstance(loader, new Class<?>[] {Timer.class},
                (proxy, method, args) -> never);
        tracker = new BucketDelayedDeliveryTracker(dispatcher, timer, tick, clock, strict, storage, least, step, most,
                maxBuckets);
    }

    void start(String[] words) throws Exception {
        properties.clear();
        stored.clear();
        nextId = 1000;
        least = Long.parseLong(words[1]);
        step = Long.parseLong(words[2]);
        most = Integer.parseInt(words[3]);
        maxBuckets = Integer.parseInt(words[4]);
        tick = Long.parseLong(words[5]);
        strict = Boolean.parseBoolean(words[6]);
        now = Long.parseLong(words[7]);
        load();
    }

    /** The buckets by range, each as start:end:id:loaded:segments:messages:ledger=bitmap;... */
    String buckets() throws Exception {
        StringBuilder out = new StringBuilder();
        for (ImmutableBucket bucket : tracker.getImmutableBuckets().asMapOfRanges().values()) {
            out.append(bucket.startLedgerId).append(':').append(bucket.endLedgerId).append(':')
                    .append(bucket.getAndUpdateBucketId()).append(':').append(bucket.currentSegmentEntryId).append(':')
                    .append(bucket.lastSegmentEntryId).append(':').append(bucket.numberBucketDelayedMessages)
                    .append(':');
            for (Map.Entry<Long, RoaringBitmap> one : new TreeMap<>(bucket.delayedIndexBitMap).entrySet()) {
                out.append(one.getKey()).append('=');
                for (int entry : one.getValue()) {
                    out.append(entry).append(',');
                }
                out.append(';');
            }
            out.append(' ');
        }
        return out.toString();
    }

    String snapshots() {
        StringBuilder out = new StringBuilder();
        for (Map.Entry<Long, List<byte[]>> one : stored.entrySet()) {
            out.append(one.getKey());
            for (byte[] entry : one.getValue()) {
                out.append(':').append(Base64.getEncoder().encodeToString(entry));
            }
            out.append(' ');
        }
        return out.toString();
    }

    String answer(String line) throws Exception {
        String[] words = line.split(" ");
        switch (words[0]) {
            case "start":
                start(words);
                return "";
            case "load":
                now = Long.parseLong(words[1]);
                load();
                return "";
            case "add": {
                now = Long.parseLong(words[1]);
                StringBuilder out = new StringBuilder();
                for (int i = 2; i < words.length; i += 3) {
                    out.append(tracker.addMessage(Long.parseLong(words[i]), Long.parseLong(words[i + 1]),
                            Long.parseLong(words[i + 2])) ? '1' : '0');
                }
                return out.toString();
            }
            case "get": {
                now = Long.parseLong(words[1]);
                StringBuilder out = new StringBuilder();
                for (Position position : tracker.getScheduledMessages(Integer.parseInt(words[2]))) {
                    out.append(position.getLedgerId()).append(':').append(position.getEntryId()).append(' ');
                }
                return out.toString();
            }
            case "count":
                return tracker.getNumberOfDelayedMessages() + " " + tracker.getSharedBucketPriorityQueue().size();
            case "buckets":
                return buckets();
            case "snapshots":
                return snapshots();
            case "properties":
                return properties.toString();
            case "unname":
                properties.remove(words[1]);
                return "";
            case "clear":
                tracker.clear().get();
                return "";
            case "bench":
                return bench(Path.of(words[1]), Integer.parseInt(words[2]));
            default:
                throw new IllegalArgumentException(line);
        }
    }

    // ---------------------------------------------------------------------------------------------------- measuring

    static long cpu() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    /** CPU ns an index of each operation over the file's (ledger, entry, deliver at) columns, best of some rounds. */
    String bench(Path file, int rounds) throws Exception {
        long[] columns;
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
            ByteBuffer mapped = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            columns = new long[(int) (channel.size() / 8)];
            mapped.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().get(columns);
        }
        int count = columns.length / 3;
        Map<String, Long> best = new TreeMap<>();
        long sum = 0;
        for (int round = 0; round < rounds; round++) {
            properties.clear();
            stored.clear();
            now = 1;
            load();
            long began = cpu();
            for (int i = 0; i < count; i++) {
                tracker.addMessage(columns[i], columns[count + i], columns[2 * count + i]);
            }
            best.merge("build", cpu() - began, Math::min);
            began = cpu();
            for (int i = 0; i < count; i++) {
                sum += tracker.containsMessage(columns[i], columns[count + i]) ? 1 : 0;
            }
            best.merge("contains", cpu() - began, Math::min);
            began = cpu();
            load();
            best.merge("recover", cpu() - began, Math::min);
            began = cpu();
            for (List<byte[]> entries : stored.values()) {
                for (int i = 1; i < entries.size(); i++) {
                    SnapshotSegment segment = parsed(entries.get(i));
                    for (int j = 0; j < segment.getIndexesCount(); j++) {
                        sum += segment.getIndexeAt(j).getTimestamp() ^ segment.getIndexeAt(j).getEntryId();
                    }
                }
            }
            best.merge("decode", cpu() - began, Math::min);
            began = cpu();
            sum += join(columns, count);
            best.merge("check", cpu() - began, Math::min);
            if (round == rounds - 1) {
                break; // the snapshots are compared
            }
            load();
            long left = tracker.getNumberOfDelayedMessages();
            now = Long.MAX_VALUE / 2;
            began = cpu();
            int handedOut;
            do {
                handedOut = tracker.getScheduledMessages(50_000).size();
                sum += handedOut;
            } while (handedOut > 0);
            best.merge("drain", (cpu() - began) * count / left, Math::min);
        }
        StringBuilder out = new StringBuilder("count=" + count + " buckets=" + stored.size() + " bytes="
                + stored.values().stream().mapToLong(es -> es.stream().mapToLong(e -> e.length).sum()).sum()
                + " sum=" + sum);
        best.forEach((name, ns) -> out.append(' ').append(name).append('=').append((double) ns / count));
        return out.toString();
    }

    /** How many messages of the topic the snapshots have at another time, or not: a hash map a bucket's ledgers. */
    long join(long[] columns, int count) {
        Map<Long, HashMap<Long, Long>> indexed = new HashMap<>();
        long differing = 0;
        for (List<byte[]> entries : stored.values()) {
            for (int i = 1; i < entries.size(); i++) {
                SnapshotSegment segment = parsed(entries.get(i));
                for (int j = 0; j < segment.getIndexesCount(); j++) {
                    indexed.computeIfAbsent(segment.getIndexeAt(j).getLedgerId(), k -> new HashMap<>())
                            .put(segment.getIndexeAt(j).getEntryId(), segment.getIndexeAt(j).getTimestamp());
                }
            }
        }
        for (int i = 0; i < count; i++) {
            HashMap<Long, Long> ledger = indexed.get(columns[i]);
            Long at = ledger == null ? null : ledger.get(columns[count + i]);
            if (at == null || at != columns[2 * count + i]) {
                differing++;
            }
        }
        return differing;
    }

    public static void main(String[] args) throws Exception {
        Configurator.setRootLevel(Level.OFF);
        PrintStream answers = new PrintStream(System.out, false);
        JavaTracker harness = new JavaTracker();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = "ok " + harness.answer(line);
            } catch (Throwable e) {
                answer = "failed " + e;
            }
            answers.println("answer " + answer.replace('\n', ' '));
            answers.flush();
        }
    }
}
