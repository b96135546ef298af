package sandbox.offloader;

import io.netty.buffer.Unpooled;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.mledger.OffloadedLedgerHandle;
import org.apache.bookkeeper.mledger.offload.OffloadUtils;

/** An offloaded ledger as a broker reads it: the index whole when opened, the data by ranged reads; never BookKeeper. */
final class OffloadedHandle implements ReadHandle, OffloadedLedgerHandle {
    private final StandIn offloader;
    private final String bucket;
    private final String key;
    private final long ledgerId;
    private final LedgerMetadata metadata;
    private final long length;
    private final NavigableMap<Long, Long> blocks = new TreeMap<>();
    private final AtomicInteger pending = new AtomicInteger();
    private volatile long lastAccess = System.currentTimeMillis();
    private ByteBuffer buffer = ByteBuffer.allocate(0);
    private long bufferAt;
    private long nextEntry = -1;
    private long nextAt;

    static ReadHandle open(StandIn offloader, String bucket, String key, long ledgerId) throws Exception {
        try {
            ByteBuffer index = ByteBuffer.wrap(offloader.get(bucket, key + "-index", 0, -1));
            return new OffloadedHandle(offloader, bucket, key, ledgerId, index);
        } catch (FileNotFoundException gone) {
            throw new BKException.BKNoSuchLedgerExistsException();
        }
    }

    private OffloadedHandle(StandIn offloader, String bucket, String key, long ledgerId, ByteBuffer index)
            throws IOException {
        this.offloader = offloader;
        this.bucket = bucket;
        this.key = key;
        this.ledgerId = ledgerId;
        if (index.getInt() != Written.INDEX_MAGIC) {
            throw new IOException("Invalid MagicWord of " + key + "-index");
        }
        index.getInt();
        length = index.getLong();
        long header = index.getLong();
        int count = index.getInt();
        byte[] segment = new byte[index.getInt()];
        index.get(segment);
        metadata = OffloadUtils.parseLedgerMetadata(ledgerId, segment);
        for (int n = 0; n < count; n++) {
            long first = index.getLong();
            index.getInt();
            blocks.put(first, index.getLong() + header);
        }
    }

    @Override
    public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
        lastAccess = System.currentTimeMillis();
        pending.incrementAndGet();
        return offloader.<LedgerEntries>run(ledgerId, () -> {
            if (first > last || first < 0 || last > getLastAddConfirmed()) {
                throw new BKException.BKIncorrectParameterException();
            }
            try {
                return LedgerEntriesImpl.create(entries(first, last));
            } catch (FileNotFoundException gone) {
                throw new BKException.BKNoSuchLedgerExistsException();
            }
        }).whenComplete((entries, error) -> {
            pending.decrementAndGet();
            lastAccess = System.currentTimeMillis();
        });
    }

    private List<LedgerEntry> entries(long first, long last) throws Exception {
        if (nextEntry != first) {
            seek(first);
        }
        List<LedgerEntry> entries = new ArrayList<>();
        boolean sought = false;
        for (long wanted = first; wanted <= last;) {
            int size = nextAt + Written.ENTRY_HEADER > length ? -1 : at(nextAt, 4).getInt();
            long entry = size < 0 ? -1 : at(nextAt + 4, 8).getLong();
            if (size < 0 || entry > wanted) { // padding or another block: ask the index, once
                if (sought) {
                    throw new BKException.BKUnexpectedConditionException();
                }
                seek(wanted);
                sought = true;
                continue;
            }
            if (entry == wanted) {
                byte[] bytes = new byte[size];
                at(nextAt + Written.ENTRY_HEADER, size).get(bytes);
                entries.add(LedgerEntryImpl.create(ledgerId, entry, size, Unpooled.wrappedBuffer(bytes)));
                sought = false;
                wanted++;
            }
            nextAt += Written.ENTRY_HEADER + size;
            nextEntry = entry + 1;
        }
        return entries;
    }

    private void seek(long entry) {
        nextEntry = blocks.floorKey(entry);
        nextAt = blocks.floorEntry(entry).getValue();
    }

    /** Bytes of the data object, read on from there if they are not in memory. */
    private ByteBuffer at(long from, int size) throws IOException {
        if (from < bufferAt || from + size > bufferAt + buffer.capacity()) {
            long until = Math.min(length, from + Math.max(size, offloader.bufferSize()));
            buffer = ByteBuffer.wrap(offloader.get(bucket, key, from, until));
            bufferAt = from;
        }
        return buffer.duplicate().position((int) (from - bufferAt));
    }

    @Override
    public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
        return readAsync(first, last);
    }

    @Override
    public CompletableFuture<Long> readLastAddConfirmedAsync() {
        return CompletableFuture.completedFuture(getLastAddConfirmed());
    }

    @Override
    public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
        return readLastAddConfirmedAsync();
    }

    @Override
    public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(long entry, long timeout,
            boolean parallel) {
        return CompletableFuture.failedFuture(new UnsupportedOperationException());
    }

    @Override
    public CompletableFuture<Void> closeAsync() {
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public long getId() {
        return ledgerId;
    }

    @Override
    public LedgerMetadata getLedgerMetadata() {
        return metadata;
    }

    @Override
    public long getLastAddConfirmed() {
        return metadata.getLastEntryId();
    }

    @Override
    public long getLength() {
        return metadata.getLength();
    }

    @Override
    public boolean isClosed() {
        return metadata.isClosed();
    }

    @Override
    public long lastAccessTimestamp() {
        return lastAccess;
    }

    @Override
    public int getPendingRead() {
        return pending.get();
    }
}
