package sandbox.offloader;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.offload.OffloadUtils;

/** The data object of a ledger, written block by block, and the index that belongs to it. */
record Written(long bytes, List<Block> blocks) {
    static final int DATA_MAGIC = 0xFBDBABCB;
    static final int INDEX_MAGIC = 0xDE47DE47;
    static final int BLOCK_HEADER = 128;
    static final int ENTRY_HEADER = 12;
    private static final byte[] PADDING = {(byte) 0xFE, (byte) 0xDC, (byte) 0xDE, (byte) 0xAD};
    private static final int AT_ONCE = 100;

    record Block(long firstEntry, int part, long offset) {
    }

    interface Parts {
        void add(int number, byte[] part) throws Exception;
    }

    /**
     * Cut a closed ledger into blocks. As the brokers' offloader, it ends without an error before an entry that fits no
     * block.
     */
    static Written of(ReadHandle ledger, int largest, Parts parts) throws Exception {
        long last = ledger.getLastAddConfirmed();
        long offset = 0;
        long payload = 0;
        List<Block> blocks = new ArrayList<>();
        for (long first = 0; first <= last;) {
            long rest = BLOCK_HEADER + (last - first + 1) * ENTRY_HEADER + ledger.getLength() - payload;
            ByteBuffer block = ByteBuffer.allocate((int) Math.min(largest, rest));
            block.putInt(DATA_MAGIC).putLong(BLOCK_HEADER).putLong(block.capacity()).putLong(first);
            block.position(BLOCK_HEADER);
            long next = fill(block, ledger, first, last);
            if (next == first) {
                break;
            }
            payload += block.position() - BLOCK_HEADER - (next - first) * ENTRY_HEADER;
            for (int n = 0; block.hasRemaining(); n++) {
                block.put(PADDING[n % PADDING.length]);
            }
            blocks.add(new Block(first, blocks.size() + 1, offset));
            parts.add(blocks.size(), block.array());
            offset += block.capacity();
            first = next;
        }
        return new Written(offset, blocks);
    }

    /** Entries from {@code first} as long as they fit; the next one. */
    private static long fill(ByteBuffer block, ReadHandle ledger, long first, long last) throws Exception {
        long next = first;
        while (next <= last) {
            try (LedgerEntries entries = ledger.read(next, Math.min(next + AT_ONCE - 1, last))) {
                for (LedgerEntry entry : entries) {
                    byte[] bytes = entry.getEntryBytes();
                    if (ENTRY_HEADER + bytes.length > block.remaining()) {
                        return next;
                    }
                    block.putInt(bytes.length).putLong(entry.getEntryId()).put(bytes);
                    next++;
                }
            }
        }
        return next;
    }

    byte[] index(LedgerMetadata metadata) {
        byte[] segment = OffloadUtils.buildLedgerMetadataFormat(metadata);
        ByteBuffer index = ByteBuffer.allocate(32 + segment.length + 20 * blocks.size());
        index.putInt(INDEX_MAGIC).putInt(index.capacity()).putLong(bytes).putLong(BLOCK_HEADER);
        index.putInt(blocks.size()).putInt(segment.length).put(segment);
        blocks.forEach(block -> index.putLong(block.firstEntry()).putInt(block.part()).putLong(block.offset()));
        return index.array();
    }
}
