import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Publishes messages, a third of them in a transaction, between the others, and ends it when told to. Run as a source
 * file; arguments: service URL, topic, messages of each third. Says "open" once all are published; reads "commit" or
 * "abort" then, and says "ended".
 */
public class OpenTransaction {
    public static void main(String[] args) throws Exception {
        int each = Integer.parseInt(args[2]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).build();
                Producer<byte[]> producer = client.newProducer().topic(args[1]).enableBatching(false)
                        .sendTimeout(0, TimeUnit.SECONDS).create()) {
            Transaction transaction =
                    client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get();
            for (int number = 0; number < 3 * each; number++) {
                byte[] value = ("message " + number).getBytes(StandardCharsets.UTF_8);
                if (number / each == 1) {
                    producer.newMessage(transaction).value(value).send();
                } else {
                    producer.send(value);
                }
            }
            System.out.println("open");
            if (new String(System.in.readAllBytes(), StandardCharsets.UTF_8).equals("commit")) {
                transaction.commit().get();
            } else {
                transaction.abort().get();
            }
            System.out.println("ended");
        }
    }
}
