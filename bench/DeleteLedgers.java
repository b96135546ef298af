import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Deletes every ledger whose id is a line of a file, asynchronously, and prints how many seconds that took. */
public class DeleteLedgers {
    public static void main(String[] args) throws Exception {
        List<String> ids = Files.readAllLines(Path.of(args[1]));
        int outstanding = Integer.parseInt(args[2]);
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(args[0]);
        try (BookKeeper client = new BookKeeper(configuration)) {
            Semaphore slots = new Semaphore(outstanding);
            CountDownLatch left = new CountDownLatch(ids.size());
            AtomicInteger failed = new AtomicInteger();
            long began = System.nanoTime();
            for (String id : ids) {
                slots.acquire();
                client.asyncDeleteLedger(Long.parseLong(id), (code, context) -> {
                    if (code != BKException.Code.OK) {
                        failed.incrementAndGet();
                    }
                    slots.release();
                    left.countDown();
                }, null);
            }
            left.await();
            System.out.println("seconds: " + (System.nanoTime() - began) / 1e9);
            System.out.println("failed: " + failed.get());
        }
        System.exit(0);
    }
}
