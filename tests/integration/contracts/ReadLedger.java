import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Enumeration;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Opens ledgers with BookKeeper's own client, as brokers do. Run as a source file; arguments: metadata service URI,
 * ledger ids. Prints for each "ledger", its id, last entry, length, and the SHA-256 of its entries in order, then
 * "tag KEY=VALUE" for each of its tags.
 */
public class ReadLedger {
    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setUseV2WireProtocol(true);
        try (BookKeeper client = new BookKeeper(conf)) {
            for (int i = 1; i < args.length; i++) {
                try (LedgerHandle ledger = client.openLedger(
                        Long.parseLong(args[i]), BookKeeper.DigestType.CRC32C, new byte[0])) {
                    MessageDigest sum = MessageDigest.getInstance("SHA-256");
                    if (ledger.getLastAddConfirmed() >= 0) {
                        Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
                        while (entries.hasMoreElements()) {
                            sum.update(entries.nextElement().getEntry());
                        }
                    }
                    System.out.println("ledger " + args[i] + " " + ledger.getLastAddConfirmed() + " "
                            + ledger.getLength() + " " + String.format("%064x", new BigInteger(1, sum.digest())));
                    for (Map.Entry<String, byte[]> tag : new TreeMap<>(ledger.getCustomMetadata()).entrySet()) {
                        System.out.println("tag " + tag.getKey() + "="
                                + new String(tag.getValue(), StandardCharsets.UTF_8));
                    }
                }
            }
        }
    }
}
