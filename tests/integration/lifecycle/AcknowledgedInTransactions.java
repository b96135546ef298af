import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Acknowledges every second message of a topic for subscription "s", each in a transaction of its own that is committed,
 * and the very last one in a transaction that is not. Run as a source file; arguments: service URL, topic, its number of
 * messages.
 */
public class AcknowledgedInTransactions {
    public static void main(String[] args) throws Exception {
        int messages = Integer.parseInt(args[2]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(args[1]).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).subscribe()) {
            for (int number = 0; number < messages; number++) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (number % 2 == 0 || number == messages - 1) {
                    Transaction transaction =
                            client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get();
                    consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
                    if (number % 2 == 0) {
                        transaction.commit().get();
                    }
                }
            }
            System.out.println("acknowledged");
        }
    }
}
